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
    {kHalfLoaded, kUnwrapped},
};

}  // namespace

std::string_view phase_name(Phase phase) {
  switch (phase) {
    case kBetweenSteps:
      return "between steps";
    case kGathered:
      return "in a gathered() scope";
    case kBackward:
      return "in backward()";
    case kBackwardDone:
      return "after backward()";
    case kAccumulating:
      return "between micro-batches";
    case kSummed:
      return "after the sum of the gradients";
    case kUpdating:
      return "in an update";
    case kBackwardFailed:
      return "after a backward() that failed";
    case kHalfLoaded:
      return "half loaded";
    case kUnwrapped:
      return "unwrapped";
  }
  return "unknown";
}

bool StepPhase::follows(Phase next, Phase now) {
  return std::find(std::begin(kTransitions), std::end(kTransitions), std::pair(now, next)) !=
         std::end(kTransitions);
}

void StepPhase::enter(Phase next) {
  TRIREME_ASSERT(follows(next, now_),
                 "an engine that is ",
                 phase_name(now_),
                 " cannot be ",
                 phase_name(next),
                 " next");
  now_ = next;
  if (next == kBetweenSteps) {
    done_ = 0;
  }
}

}  // namespace trireme::detail
