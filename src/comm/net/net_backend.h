#pragma once

#include <memory>
#include <vector>

#include "comm/algo/algorithms.h"
#include "comm/net/network.h"
#include "comm/queue/operation_queue.h"

namespace trireme::detail {

struct NetOptions {
  std::shared_ptr<Network> network;
  std::vector<int> ranks;  // of the network, in order
  std::shared_ptr<const ChannelLease> channel;
  Algorithm algorithm = Algorithm::kAutomatic;
  int sum_group = 1;
};

// The queue of ranks that reach each other through messages. As a part of another one, it only
// moves data: that one watches the ranks, and tells them.
std::shared_ptr<OperationQueue> make_net_queue(NetOptions net, QueueOptions options);

}  // namespace trireme::detail
