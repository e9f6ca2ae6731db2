#include "comm/api/communicator_builder.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <numeric>
#include <utility>

#include <unistd.h>

#include "comm/api/ordinary_memory.h"
#include "comm/hierarchy/hierarchical_backend.h"
#include "comm/net/net_backend.h"
#include "comm/rendezvous/secrets.h"
#include "comm/shm/named_collectives.h"
#include "comm/shm/shm_backend.h"
#include "trireme/core/error.h"
#include "trireme/core/index.h"

namespace trireme::detail {

std::string meeting_name(const std::string& what) {
  return concat("trireme/", geteuid(), "/", what);
}

class CommunicatorBuilder::Groups final : public GroupMaker {
 public:
  Groups(std::shared_ptr<CommunicatorBuilder> builder, std::vector<int> ranks, bool on_machine)
      : builder_(std::move(builder)), ranks_(std::move(ranks)), on_machine_(on_machine) {}

  GroupOffer offer() const override {
    const auto& network = builder_->options_.network;
    return network ? network->free_channels() : GroupOffer{};
  }

  std::shared_ptr<Communicator> make(const GroupPlan& plan) override {
    Blueprint blueprint;
    for (const int rank : plan.ranks) {
      blueprint.ranks.push_back(ranks_[index(rank)]);
    }
    blueprint.group = plan.name;
    blueprint.sum_group = plan.sum_group;
    blueprint.on_machine = on_machine_;
    blueprint.parent = plan.parent;
    blueprint.parent_ranks = plan.ranks;
    if (builder_->goes_over_network(blueprint)) {
      blueprint.flat_channel = take_channel(plan, 0);
      blueprint.column_channel = take_channel(plan, 1);
    }
    return std::make_shared<Communicator>(builder_->make(blueprint));
  }

 private:
  // The channel number `which` of those that all ranks of the group have free.
  std::shared_ptr<const ChannelLease> take_channel(const GroupPlan& plan, int which) const {
    GroupOffer free = plan.offers.front();
    for (const GroupOffer& offer : plan.offers) {
      std::transform(free.begin(), free.end(), offer.begin(), free.begin(), std::bit_and<>());
    }
    for (std::uint32_t word = 0; word < free.size(); ++word) {
      for (std::uint64_t bits = free[word]; bits != 0; bits &= bits - 1) {
        if (which-- == 0) {
          const auto channel = 64 * word + static_cast<std::uint32_t>(std::countr_zero(bits));
          return std::make_shared<ChannelLease>(
              builder_->options_.network, channel, group_number(plan.name));
        }
      }
    }
    throw ConfigError(concat("split: a rank can be in at most ",
                             Channel::kChannels / 2 - 1,
                             " groups at a time: drop those that are no longer needed"));
  }

  std::shared_ptr<CommunicatorBuilder> builder_;
  std::vector<int> ranks_;  // in the world, of the communicator that is split
  bool on_machine_;
};

bool CommunicatorBuilder::is_here(int world_rank) const {
  const auto& network = options_.network;
  return !network || network->machines()[index(world_rank)] == network->self().node;
}

std::shared_ptr<GroupMaker> CommunicatorBuilder::groups_of(const Blueprint& blueprint) {
  return std::make_shared<Groups>(shared_from_this(), blueprint.ranks, blueprint.on_machine);
}

Communicator::Parts CommunicatorBuilder::make_world(World::Facts* facts) {
  Blueprint world;
  world.ranks.resize(index(options_.machine.meeting.identity.size));
  std::iota(world.ranks.begin(), world.ranks.end(), 0);
  world.sum_group = options_.machine.sum_group;
  world.facts = facts;
  if (const auto& network = options_.network) {
    world.flat_channel = std::make_shared<ChannelLease>(network, Network::kWorldChannel, 0);
    world.column_channel = std::make_shared<ChannelLease>(network, Network::kColumnChannel, 0);
  }
  return make(world);
}

QueueOptions CommunicatorBuilder::queue_options(const std::string& group) const {
  QueueOptions queue = options_.queue;
  queue.group = group;
  queue.turns = std::make_shared<Turns>();
  return queue;
}

// A group whose ranks share a machine shares its memory, unless its world is to go through the
// network although it has one machine.
bool CommunicatorBuilder::goes_over_network(const Blueprint& blueprint) const {
  const auto& network = options_.network;
  if (!network || blueprint.on_machine) {
    return false;
  }
  if (network->members().back().node == 0 || blueprint.group.empty()) {
    return true;
  }
  return !std::all_of(
      blueprint.ranks.begin(), blueprint.ranks.end(), [&](int rank) { return is_here(rank); });
}

Communicator::Parts CommunicatorBuilder::make(const Blueprint& blueprint) {
  if (goes_over_network(blueprint)) {
    return make_over_network(blueprint);
  }
  auto made = make_on_machine(blueprint, "", blueprint.sum_group, queue_options(blueprint.group));
  made->end_with(blueprint.parent, blueprint.parent_ranks);
  return {std::move(made), nullptr, groups_of(blueprint)};
}

Communicator::Parts CommunicatorBuilder::make_over_network(const Blueprint& blueprint) {
  QueueOptions queue = queue_options(blueprint.group);
  const auto& machines = options_.network->machines();
  Blueprint here;
  here.group = blueprint.group;
  here.parent = blueprint.parent;
  here.facts = blueprint.facts;
  here.on_machine = true;
  std::vector<int> here_in_group;
  std::vector<int> places;  // the machines of the ranks
  for (std::size_t rank = 0; rank < blueprint.ranks.size(); ++rank) {
    places.push_back(machines[index(blueprint.ranks[rank])]);
    if (is_here(blueprint.ranks[rank])) {
      here.ranks.push_back(blueprint.ranks[rank]);
      here_in_group.push_back(static_cast<int>(rank));
    }
  }
  std::sort(places.begin(), places.end());
  const bool several = places.front() != places.back();
  const bool shared = std::adjacent_find(places.begin(), places.end()) != places.end();

  std::shared_ptr<OperationQueue> made;
  if (several && shared) {
    QueueOptions part;
    part.timeout = queue.timeout;
    part.part = true;
    HierarchyOptions hierarchy;
    hierarchy.network = options_.network;
    hierarchy.ranks = blueprint.ranks;
    Blueprint inside = here;
    inside.facts = nullptr;
    hierarchy.inside = make_on_machine(inside, "inside", 1, std::move(part));
    hierarchy.flat_channel = blueprint.flat_channel;
    hierarchy.column_channel = blueprint.column_channel;
    hierarchy.algorithm = options_.algorithm;
    hierarchy.sum_group = blueprint.sum_group;
    made = make_hierarchical_queue(std::move(hierarchy), std::move(queue));
  } else {
    NetOptions net;
    net.network = options_.network;
    net.ranks = blueprint.ranks;
    net.channel = blueprint.flat_channel;
    net.algorithm = options_.algorithm;
    net.sum_group = blueprint.sum_group;
    made = make_net_queue(std::move(net), std::move(queue));
  }
  made->end_with(blueprint.parent, blueprint.parent_ranks);

  // Its groups have other names than those of the whole.
  QueueOptions quiet = queue_options(blueprint.group + "m");
  quiet.quiet = true;
  quiet.helper_thread = false;
  auto machine = make_on_machine(here, "machine", 1, std::move(quiet));
  machine->end_with(made, here_in_group);
  return {made,
          std::make_shared<Communicator>(
              Communicator::Parts{std::move(machine), nullptr, groups_of(here)}),
          groups_of(blueprint)};
}

std::shared_ptr<OperationQueue> CommunicatorBuilder::make_on_machine(const Blueprint& blueprint,
                                                                     const char* purpose,
                                                                     int sum_group,
                                                                     QueueOptions queue) {
  MembershipOptions options = options_.machine;
  const auto self = std::find(blueprint.ranks.begin(), blueprint.ranks.end(), world_rank());
  options.meeting.identity.rank = static_cast<int>(self - blueprint.ranks.begin());
  options.meeting.identity.size = static_cast<int>(blueprint.ranks.size());
  options.world_ranks = blueprint.ranks;
  options.sum_group = sum_group;
  // Inside a hierarchy, which none with a name has, there is only memory.
  const Algorithm algorithm = queue.part ? Algorithm::kAutomatic : options_.algorithm;
  options.lanes = needs_lanes(algorithm);
  if (options_.network) {
    options.meeting.name += concat("/", options_.network->self().node, "/", purpose);
  }
  if (!blueprint.group.empty()) {
    // Groups of groups have long names.
    options.meeting.name += "/" + hex_digest(blueprint.group).substr(0, 24);
    options.meeting.look = [parent = blueprint.parent](Milliseconds patience) {
      if (const auto failure = parent->find_failure(patience)) {
        throw CommError(*failure);
      }
    };
  }
  Membership membership = become_members(options);
  if (blueprint.facts != nullptr) {
    options_.machine.oversubscribed |= membership.oversubscribed;
    if (!options_.network) {
      options_.machine.meeting.name = meeting_name(membership.world);
    }
    blueprint.facts->ordinary_memory = note_ordinary_memory(membership);
  }
  return make_shm_queue(std::move(membership), algorithm, std::move(queue));
}

}  // namespace trireme::detail
