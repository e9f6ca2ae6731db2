#pragma once

#include <string>
#include <vector>

#include "trireme/average/phased_engine.h"

namespace trireme::detail {

inline bool is_exact(const SyncMode& mode) {
  return std::holds_alternative<Exact>(mode);
}
// Of one that is not exact.
Averaging::Mode averaging_mode(const SyncMode& mode);
// They differ in nothing but the number of steps.
bool same_but_for_steps(const SyncMode& a, const SyncMode& b);

// Throws ConfigError for phases that cannot be, or not with the rest.
void check_phases(const Phased& options, const Replicas& replicas);
// All that must be the same on all ranks, but for the engine's options.
std::string description_of(const Phased& options);

// The phase of a step: the last one that has begun.
const SyncPhase& phase_at(const std::vector<SyncPhase>& phases, std::int64_t step);

// What a training with phases adds to the progress of its engine, or of its replicas.
struct PhaseProgress {
  std::int64_t steps = 0;
  std::vector<SyncPhase> entered{};  // empty: it had none
  std::int64_t averagings = 0;       // in phases before this one
  // Of the phases that were planned, the one that began last: a loop may have entered another
  // since.
  std::optional<SyncPhase> planned{};
  std::string averaging{};  // of replicas: the name of how they were averaged

  std::string added_to(const std::string& progress) const;
  // `phases`: which outer optimizers and graphs there are. Throws ConfigError for a mode that is
  // not among them.
  static PhaseProgress parse(const std::string& text, const std::vector<SyncPhase>& phases);
};

}  // namespace trireme::detail
