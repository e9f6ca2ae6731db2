#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "trireme/settings/train_settings.h"

// Settings whose text has a meaning of its own.

namespace trireme {

// "512MB", "1.5GiB"; nothing for "auto"; a memory limit of "none" is 0. Throws ConfigError for
// anything else.
std::optional<std::uint64_t> memory_limit_bytes(const std::string& text);
std::optional<std::uint64_t> snapshot_limit_bytes(const std::string& text);

// Between the cells of a CSV file: a character, or its name; 0 for "auto". Throws ConfigError for
// anything else.
char separator_of(const TrainSettings& settings);

// From step `step` on (counted from 0), updates are made of `batch` samples.
struct BatchChange {
  std::int64_t step = 0;
  std::int64_t batch = 0;
};
std::vector<BatchChange> batch_changes(const TrainSettings& settings);

// From step `step` on (counted from 0), replicas are averaged after every `every` steps, or all
// ranks sum their gradients, or what is measured decides between the two (sync = auto).
struct SyncChange {
  static constexpr std::int64_t kExact = 0;
  static constexpr std::int64_t kMeasured = -1;
  std::int64_t step = 0;
  std::int64_t every = 0;
};
std::vector<SyncChange> sync_changes(const TrainSettings& settings);
// Whether the run has exact steps, or may have, and others in which replicas are averaged.
bool has_phases(const TrainSettings& settings);
// Ranks of each replica (settings.sync_group); 0: those of a machine. Throws ConfigError for a text
// that is neither.
int ranks_of_replica(const TrainSettings& settings);

// Whether ranks send gradients to owners of weights, and do not wait for each other in every step.
bool trains_stale(const TrainSettings& settings);
// Gradients make updates when they arrive, which a run records and another one can replay.
bool by_arrival(const TrainSettings& settings);
// In the folder of a run, and of the run that is replayed.
inline constexpr const char* kArrivalsFolder = "/arrivals";

// Where optimizer states are between updates, and 16-bit parameters' masters. Throws ConfigError
// for a text that says nothing of it.
struct OffloadPlace {
  bool host = false;   // of a model on a GPU: in the host's memory
  std::string folder;  // not empty: in files there

  bool any() const { return host || !folder.empty(); }
};
OffloadPlace offload_place(const TrainSettings& settings);

// How many of the run's steps the learning rate rises in. Once the settings are resolved.
std::int64_t warm_up_steps(const TrainSettings& settings, std::int64_t steps);

// The settings of the optimizer's rule (optim/optimizer.h), from those that have a name of their
// own and from optimizer_options. Throws ConfigError for an option that it has not.
std::map<std::string, double> optimizer_settings(const TrainSettings& settings);

// What an evaluation should reach; nothing where no goal is set. Throws ConfigError for a text that
// is none.
struct Goal {
  std::string metric;
  double value = 0;
};
std::optional<Goal> goal_of(const TrainSettings& settings);

}  // namespace trireme
