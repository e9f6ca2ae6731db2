#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "trireme/comm/world.h"

// What the ranks do that `trireme bench checkpoint` starts. Each function returns an exit code;
// rank 0 writes what it has measured to `output`.

namespace trireme::bench {

struct CheckpointRankOptions {
  std::size_t bytes = 512U << 20U;  // of state, of all ranks together
  std::string folder;               // for checkpoints, empty at first
  std::string output;
};

// The file that rank 0 writes: an array of {op, peer, ms}. `peer` is empty where it is Trireme.
class RankSamples {
 public:
  explicit RankSamples(World& world) : world_(world) {}

  // A few calls, after some without a clock, which take memory that later ones find: each from when
  // all ranks begin until all have ended. `before` each it is made ready for; where that answers
  // false, it is not measured.
  void time(const char* op,
            const char* peer,
            const std::function<bool()>& before,
            const std::function<void()>& call);
  void add(const char* op, const char* peer, std::vector<double> ms);
  void write(const std::string& output) const;

 private:
  World& world_;
  nlohmann::json lines_ = nlohmann::json::array();
};

// CheckpointWriter and CheckpointReader: save, save_pause, load_warm and load_cold.
int run_save_and_load(const CheckpointRankOptions& options);

// One rank, no checkpoints: the same bytes in one file through write() and read().
int run_plain_file(const CheckpointRankOptions& options);

// step_during_save: steps of an engine, with nothing going on and while checkpoints are written.
int run_steps_during_save(const CheckpointRankOptions& options);

const char* libtorch_version();

}  // namespace trireme::bench
