#include "parallel/engine/step_phase.h"

#include <algorithm>
#include <utility>

#include "trireme/core/error.h"

namespace trireme::detail {
namespace {

using enum Phase;

// What may follow on what. A failed backward is not entered but fallen into.
constexpr std::pair<Phase, Phase> kTransitions[] = {
    {kBetweenSteps, kGathered},   {kBetweenSteps, kBackward},   {kBetweenSteps, kSummed},
    {kBetweenSteps, kHalfLoaded}, {kBetweenSteps, kUnwrapped},  {kGathered, kBetweenSteps},
    {kBackward, kBackwardDone},   {kBackward, kBackwardFailed}, {kBackwardDone, kAccumulating},
    {kBackwardDone, kSummed},     {kAccumulating, kBackward},   {kAccumulating, kSummed},
    {kSummed, kUpdating},         {kSummed, kBetweenSteps},     {kUpdating, kBetweenSteps},
    {kUpdating, kUnwrapped},      {kBackwardFailed, kSummed},   {kBackwardFailed, kUnwrapped},
    {kHalfLoaded, kUnwrapped},    {kBackward, kMoreToCome},     {kMoreToCome, kBackward},
    {kMoreToCome, kSummed},
};

}  // namespace

std::string_view phase_name(Phase phase) {
  constexpr std::string_view kNames[] = {"between steps",
                                         "in a gathered() scope",
                                         "in backward()",
                                         "between the losses of a micro-batch",
                                         "after backward()",
                                         "between micro-batches",
                                         "after the sum of the gradients",
                                         "in an update",
                                         "after a backward() that failed",
                                         "half loaded",
                                         "unwrapped"};
  return kNames[static_cast<int>(phase)];
}

bool StepPhase::follows(Phase next, Phase now) {
  return std::find(std::begin(kTransitions), std::end(kTransitions), std::pair(now, next)) !=
         std::end(kTransitions);
}

void StepPhase::enter(Phase next) {
  TRIREME_ASSERT(follows(next, now_),
                 "an engine that is {} cannot be {} next",
                 {phase_name(now_), phase_name(next)});
  now_ = next;
  if (next == kBetweenSteps) {
    done_ = 0;
  }
}

}  // namespace trireme::detail
