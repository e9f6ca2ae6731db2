#include "trireme/shard/dealing.h"

#include <algorithm>
#include <cmath>

#include "trireme/core/error.h"

namespace trireme {

std::vector<std::int64_t> deal_micro_batches(std::int64_t micro_batches,
                                             const std::vector<double>& speeds) {
  TRIREME_CHECK(micro_batches >= 1, "a step needs at least one micro-batch, found ", micro_batches);
  double fastest = 0;
  for (const double speed : speeds) {
    TRIREME_CHECK(speed >= 0 && std::isfinite(speed), "a rank cannot have the speed ", speed);
    fastest = std::max(fastest, speed);
  }
  TRIREME_CHECK(fastest > 0, "expected at least one rank with a speed above 0");
  std::vector<std::int64_t> counts(speeds.size(), 0);
  for (std::int64_t dealt = 0; dealt < micro_batches; ++dealt) {
    std::size_t best = speeds.size();
    for (std::size_t rank = 0; rank < speeds.size(); ++rank) {
      // (counts + 1) / speed, compared without dividing by 0
      if (speeds[rank] > 0 &&
          (best == speeds.size() || static_cast<double>(counts[rank] + 1) * speeds[best] <
                                        static_cast<double>(counts[best] + 1) * speeds[rank])) {
        best = rank;
      }
    }
    ++counts[best];
  }
  return counts;
}

}  // namespace trireme
