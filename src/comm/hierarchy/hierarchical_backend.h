#pragma once

#include <memory>
#include <vector>

#include "comm/algo/algorithms.h"
#include "comm/net/network.h"
#include "comm/queue/operation_queue.h"

namespace trireme::detail {

struct HierarchyOptions {
  std::shared_ptr<Network> network;
  std::vector<int> ranks;  // of the network, in order
  // The ranks among them that are on this machine, in order, as a part of the whole.
  std::shared_ptr<OperationQueue> inside;
  std::shared_ptr<const ChannelLease> flat_channel;
  std::shared_ptr<const ChannelLease> column_channel;
  Algorithm algorithm = Algorithm::kAutomatic;
  int sum_group = 1;
};

// The queue of ranks of several machines. Inside a machine data goes through shared memory; between
// machines every rank is the leader of its own part of the data, so that nothing crosses the
// network twice.
std::shared_ptr<OperationQueue> make_hierarchical_queue(HierarchyOptions hierarchy,
                                                        QueueOptions options);

}  // namespace trireme::detail
