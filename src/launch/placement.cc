#include "launch/placement.h"

#include <algorithm>

#include "trireme/shard/range.h"

namespace trireme::detail {

std::vector<Placement> place_ranks(int ranks, const std::vector<int>& cpus, int quota) {
  std::vector<Placement> places(static_cast<std::size_t>(ranks));
  const int count = static_cast<int>(cpus.size());
  // A quota is time, not a set of processors: slices of all of them would run into it.
  if (quota > 0 && quota < count) {
    for (Placement& place : places) {
      place.threads = std::max(1, quota / ranks);
    }
    return places;
  }
  if (ranks > count) {
    return places;
  }
  for (int rank = 0; rank < ranks; ++rank) {
    const Range slice = even_range(count, ranks, rank);
    Placement& place = places[static_cast<std::size_t>(rank)];
    place.cpus.assign(cpus.begin() + slice.begin, cpus.begin() + slice.end);
    place.threads = static_cast<int>(slice.size());
  }
  return places;
}

}  // namespace trireme::detail
