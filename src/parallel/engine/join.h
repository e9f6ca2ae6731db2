#pragma once

#include <vector>

#include "parallel/gradient/round_records.h"

namespace trireme::detail {

// What active ranks do at the end of a step, told by the first of them (Agreement::lead) to those
// that have joined and follow.
struct Act {
  enum class Kind { kClip = 0, kGradient = 1, kFinish = 2, kSetGradient = 3, kDrop = 4 };
  Kind kind = Kind::kFinish;
  double value = 0;  // the bound; the parameter; the base of the learning rate
};

// On active ranks, before they do it. Nothing is sent where all are active.
inline void announce(const Act& act, const Agreement& agreement, Communicator& ranks) {
  if (agreement.any_joined) {
    std::vector<double> message = {static_cast<double>(act.kind), act.value};
    ranks.broadcast(message, agreement.lead).wait();
  }
}

// On those that have joined: what they do next.
inline Act next_act(const Agreement& agreement, Communicator& ranks) {
  std::vector<double> message(2);
  ranks.broadcast(message, agreement.lead).wait();
  return {static_cast<Act::Kind>(static_cast<int>(message[0])), message[1]};
}

}  // namespace trireme::detail
