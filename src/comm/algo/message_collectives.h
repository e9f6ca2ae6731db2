#pragma once

#include "comm/algo/algorithms.h"
#include "comm/algo/channel.h"
#include "comm/algo/net_call.h"
#include "comm/order/matching.h"
#include "comm/queue/backend.h"
#include "comm/queue/steps.h"

namespace trireme::detail {

// The collectives of the ranks of a channel, by an algorithm.
class MessageCollectives {
 public:
  // `channel` outlives it. `sum_group`: of sums whose call names no other.
  MessageCollectives(Channel& channel, Algorithm algorithm, int sum_group, NameOf name);

  // Tells the peers of a call, as far as that can be done at once, and returns the rest. `call`
  // outlives the steps.
  Steps start(const Call& call);

  // Whether the algorithm carries this operation out in another way than `direct` does.
  bool is_special(const Operation& operation) const;

 private:
  Algorithm algorithm_for(const Operation& operation) const;
  Announcing announcing_for(const Operation& operation) const;
  Steps run(std::unique_ptr<NetCall> call, Announcing announcing);
  Steps steps_for_large(NetCall& call, AllAnnounced& announced);

  Channel& channel_;
  const Algorithm algorithm_;
  const int sum_group_;
  const NameOf name_;
  AnnouncementPool pool_;
};

}  // namespace trireme::detail
