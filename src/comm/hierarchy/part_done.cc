#include "comm/hierarchy/part_done.h"

#include <utility>

namespace trireme::detail {

PartDone::PartDone(Work work,
                   std::function<int(int)> world_rank,
                   std::function<std::string(int)> name)
    : work_(std::move(work)), world_rank_(std::move(world_rank)), name_(std::move(name)) {}

bool PartDone::ready() {
  try {
    return work_.done();
  } catch (const CommError& error) {
    throw of_the_world(error);
  }
}

std::vector<int> PartDone::missing() {
  std::vector<int> ranks = work_.missing();
  for (int& rank : ranks) {
    rank = world_rank_(rank);
  }
  return ranks;
}

CommError PartDone::of_the_world(const CommError& error) const {
  using Reason = CommError::Reason;
  const int rank = error.peer() < 0 ? -1 : world_rank_(error.peer());
  // Users know ranks by their numbers in the world, and never hear of the parts.
  const bool lost = error.reason() == Reason::kPeerDied || error.reason() == Reason::kPeerLeft;
  return name_ && rank >= 0 && lost ? lost_rank(error.reason(), rank, name_(rank))
                                    : CommError(error.reason(), rank, error.what());
}

}  // namespace trireme::detail
