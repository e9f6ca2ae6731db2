#include "train/rank_changes.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "trireme/comm/kept_memory.h"
#include "trireme/comm/launch_protocol.h"
#include "trireme/core/environment.h"

namespace trireme::detail {
namespace {

constexpr std::int64_t kMostRanksTold = 1 << 20;

// The world that this process was in last. One for the process: only what a launcher has started
// looks at it, and that has one training at a time.
struct LastWorld {
  std::int64_t epoch = -1;  // none
  int ranks = 0;
  std::int64_t step = 0;  // begun
  bool ended_in_order = false;
  RankChanges changes{};
};
LastWorld g_last_world;

}  // namespace

void remember_step(std::int64_t step) {
  if (launcher_keeps_memory()) {
    g_last_world.step = step;
  }
}

void remember_end(const CommError& error) {
  g_last_world.ended_in_order = error.reason() == CommError::Reason::kPeerLeft && error.peer() < 0;
}

RankChanges changes_up_to(World& world, const KeptWorld& kept) {
  if (!launcher_keeps_memory()) {
    return kept.changes;
  }
  const LastWorld before = std::exchange(g_last_world, {world.epoch(), world.size(), 0, false, {}});
  RankChanges total = kept.changes;
  if (world.epoch() > 0 && before.epoch != world.epoch()) {  // the same on all ranks
    // Worlds that ended before anybody asked in them, as in the beginning, nobody remembers: what
    // came since the last one that somebody does has joined, and was told how many there were.
    std::vector<std::int64_t> last = {std::max<std::int64_t>(0, before.epoch)};
    world.all_reduce(last, ReduceOp::kMax).wait();
    const bool outlives = env_integer(kEnvEpoch, 0, kMostEpoch).value_or(0) <= last[0];
    const std::int64_t told = env_integer(kEnvSize, 1, kMostRanksTold).value_or(0);
    std::vector<std::int64_t> outlived = {outlives ? 1 : 0};
    world.all_reduce(outlived).wait();
    // What was kept may be older than the last change that somebody has seen.
    std::vector<std::int64_t> seen = {before.epoch < 0 && outlives ? told : before.ranks,
                                      before.step,
                                      before.changes.times,
                                      before.changes.lost,
                                      before.changes.joined,
                                      before.changes.steps_again,
                                      before.changes.left,
                                      before.ended_in_order ? 1 : 0};
    world.all_reduce(seen, ReduceOp::kMax).wait();
    const std::int64_t ranks = seen[0] > 0 ? seen[0] : kept.ranks > 0 ? kept.ranks : world.size();
    total.times = std::max(total.times, seen[2]) + 1;
    total.lost = std::max(total.lost, seen[3]);
    total.left = std::max(total.left, seen[6]);
    (seen[7] != 0 ? total.left : total.lost) += std::max<std::int64_t>(0, ranks - outlived[0]);
    total.joined = std::max(total.joined, seen[4]) + world.size() - outlived[0];
    // Where nobody is left to tell, the step at hand; none, where nothing shows that there was one.
    const std::int64_t untold = kept.ranks > 0 ? 1 : 0;
    total.steps_again = std::max(total.steps_again, seen[5]) +
                        (outlived[0] > 0 ? std::max<std::int64_t>(0, seen[1] - kept.step) : untold);
  }
  g_last_world.changes = total;
  return total;
}

}  // namespace trireme::detail
