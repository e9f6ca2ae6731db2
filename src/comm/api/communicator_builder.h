#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/algo/algorithms.h"
#include "comm/net/network.h"
#include "comm/queue/group_maker.h"
#include "comm/queue/operation_queue.h"
#include "comm/shm/membership.h"
#include "trireme/comm/communicator.h"
#include "trireme/comm/world.h"

namespace trireme::detail {

// Where ranks of this user and machine meet: a world at its job's name, then its groups, and the
// ranks of a machine where there are several, at one that no other world has.
std::string meeting_name(const std::string& what);

// What the communicators of a world have in common.
struct BuilderOptions {
  // Of meetings on this machine; the identity is that of the world.
  MembershipOptions machine;
  QueueOptions queue;
  Algorithm algorithm = Algorithm::kAutomatic;
  // Where ranks do not all share a machine, or are not to use that:
  std::shared_ptr<Network> network;
};

// Makes a world's communicator, and those of its groups.
class CommunicatorBuilder : public std::enable_shared_from_this<CommunicatorBuilder> {
 public:
  explicit CommunicatorBuilder(BuilderOptions options) : options_(std::move(options)) {}

  // Completes `facts`. Collective and blocking; throws like `init`.
  Communicator::Parts make_world(World::Facts* facts);

 private:
  class Groups;
  // One communicator to be made.
  struct Blueprint {
    std::vector<int> ranks;  // in the world, in order
    std::string group;       // its name; empty: the world
    int sum_group = 1;
    bool on_machine = false;  // of Communicator::machine, and of its groups
    // Over a network:
    std::shared_ptr<const ChannelLease> flat_channel;
    std::shared_ptr<const ChannelLease> column_channel;
    std::shared_ptr<OperationQueue> parent;  // of a group
    std::vector<int> parent_ranks;
    World::Facts* facts = nullptr;  // of the world
  };

  int world_rank() const { return options_.machine.meeting.identity.rank; }
  Communicator::Parts make(const Blueprint& blueprint);
  Communicator::Parts make_over_network(const Blueprint& blueprint);
  QueueOptions queue_options(const std::string& group) const;
  // Of those ranks that are on this machine. `purpose` tells several of one blueprint apart.
  std::shared_ptr<OperationQueue> make_on_machine(const Blueprint& blueprint,
                                                  const char* purpose,
                                                  int sum_group,
                                                  QueueOptions queue);
  std::shared_ptr<GroupMaker> groups_of(const Blueprint& blueprint);
  bool is_here(int world_rank) const;
  bool goes_over_network(const Blueprint& blueprint) const;

  BuilderOptions options_;
};

}  // namespace trireme::detail
