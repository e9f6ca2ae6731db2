#include "trireme/average/replicas.h"

#include <vector>

#include "trireme/core/error.h"

namespace trireme {
namespace {

// Which replica a rank belongs to.
int replica_of(Communicator& world, const ReplicaOptions& options) {
  TRIREME_CHECK(options.ranks >= 0,
                "ReplicaOptions::ranks: expected ranks of each replica, or 0 for those of a "
                "machine, found ",
                options.ranks);
  if (options.ranks != ReplicaOptions::kMachine) {
    TRIREME_CHECK(world.size() % options.ranks == 0,
                  "replicas of {} ranks: expected a number that divides the {} ranks of the world",
                  {options.ranks, world.size()});
    return world.rank() / options.ranks;
  }
  // A machine is known by the first of its ranks.
  std::vector<std::int64_t> mine = {world.rank()};
  world.machine().all_reduce(mine, ReduceOp::kMin).wait();
  mine.push_back(world.machine().size());
  std::vector<std::int64_t> all(2 * static_cast<std::size_t>(world.size()));
  world.all_gather(mine, all).wait();
  for (std::size_t i = 0; i < all.size(); i += 2) {
    const auto rank = static_cast<std::int64_t>(i / 2);
    TRIREME_CHECK(all[i + 1] == all[1] && all[i] == rank / all[1] * all[1],
                  "replicas of a machine each: expected as many ranks on every machine, one after "
                  "another, found {} on that of rank 0, and rank {} on one of {} whose first rank "
                  "is {}",
                  {all[1], rank, all[i + 1], all[i]});
  }
  return world.rank() / static_cast<int>(all[1]);
}

}  // namespace

Replicas::Replicas(std::shared_ptr<Communicator> world, const ReplicaOptions& options)
    : world_(std::move(world)) {
  const int replica = replica_of(*world_, options);
  mine_ = world_->split(replica);
  across_ = world_->split(mine_->rank(), replica);
}

}  // namespace trireme
