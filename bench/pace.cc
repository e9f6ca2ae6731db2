#include "pace.h"

#include <algorithm>

#include "trireme/core/random.h"

namespace trireme::bench {

double Pace::stalls(int rank, std::int64_t step) const {
  if (step < 0) {
    return 0;
  }
  RandomStream random(mix(seed, rank, step));
  return random.uniform() < probability ? 1 : 0;
}

double Pace::milliseconds(int rank, std::int64_t step) const {
  return ms * ((rank == slow_rank ? factor : 1) + stall * stalls(rank, step));
}

double time_until_done(const std::vector<std::vector<double>>& durations, int bound) {
  const std::size_t ranks = durations.size();
  const std::size_t steps = ranks == 0 ? 0 : durations.front().size();
  const std::size_t behind = static_cast<std::size_t>(bound) + 1;
  std::vector<double> done(ranks, 0);      // with the step before, by rank
  std::vector<double> all_done(steps, 0);  // by step
  for (std::size_t step = 0; step < steps; ++step) {
    const double may_begin = step >= behind ? all_done[step - behind] : 0;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      done[rank] = std::max(done[rank], may_begin) + durations[rank][step];
      all_done[step] = std::max(all_done[step], done[rank]);
    }
  }
  return steps == 0 ? 0 : all_done.back();
}

}  // namespace trireme::bench
