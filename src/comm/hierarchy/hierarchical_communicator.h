#pragma once

#include <memory>
#include <string>

#include "comm/net/net_communicator.h"
#include "trireme/comm/communicator.h"

namespace trireme::detail {

struct HierarchyOptions {
  std::vector<Member> members;  // by rank
  Algorithm algorithm = Algorithm::kAutomatic;
  int sum_group = 1;
  QueueOptions queue;
};

// Ranks of several machines. Inside a machine data goes through shared memory; between machines
// every rank is the leader of its own part of the data, so that nothing crosses the network twice.
// `inside` and `machine` are two communicators of this machine's ranks: the first is used here, the
// second is the caller's.
std::unique_ptr<Communicator> make_hierarchical_communicator(
    const std::shared_ptr<Transport>& transport,
    std::unique_ptr<Communicator> inside,
    std::unique_ptr<Communicator> machine,
    HierarchyOptions options);

}  // namespace trireme::detail
