#pragma once

#include <cstdint>
#include <string_view>

#include "parallel/gradient/backward_mark.h"

namespace trireme::detail {

// Where an engine is in a step. Those from kUpdating on are, for whoever calls it, failures that
// only unwrap() ends.
enum class Phase {
  kBetweenSteps,
  kGathered,        // a gathered() scope is open
  kBackward,        // in backward()
  kMoreToCome,      // a backward() of a micro-batch that has more of them
  kBackwardDone,    // and no step() since
  kAccumulating,    // step() has ended a micro-batch, and this rank has more of them
  kSummed,          // the step's gradients are summed over the ranks
  kUpdating,        // parameters are being changed
  kBackwardFailed,  // its step can still be given up
  kHalfLoaded,
  kUnwrapped,
};
std::string_view phase_name(Phase phase);

// The phase of an engine's step, and how many of it this rank has done.
class StepPhase {
 public:
  Phase now() const { return now_; }
  template <class... Phases>
  bool is(Phases... any_of) const {
    return ((now_ == any_of) || ...);
  }
  // Throws InternalError, naming both phases, where the one does not follow on the other.
  void enter(Phase next);
  static bool follows(Phase next, Phase now);

  // Micro-batches of this rank that this step has had. A step that is given up has had the one that
  // failed, where the others have heard of it.
  std::int64_t done() const { return done_; }
  void count_micro_batch() { ++done_; }

  // One backward pass: kBackward while it lives, and kBackwardFailed after it unless it is
  // finished.
  class Backward {
   public:
    explicit Backward(StepPhase& phase) : phase_(phase) { phase_.enter(Phase::kBackward); }
    Backward(const Backward&) = delete;
    Backward& operator=(const Backward&) = delete;
    ~Backward() {
      if (phase_.is(Phase::kBackward)) {
        phase_.now_ = Phase::kBackwardFailed;
      }
    }
    void finish_part() { phase_.enter(Phase::kMoreToCome); }
    void finish() {
      phase_.enter(Phase::kBackwardDone);
      phase_.count_micro_batch();
    }

   private:
    StepPhase& phase_;
    InBackward mark_;
  };

 private:
  Phase now_ = Phase::kBetweenSteps;
  std::int64_t done_ = 0;
};

}  // namespace trireme::detail
