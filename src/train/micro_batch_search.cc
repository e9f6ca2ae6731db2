#include "train/micro_batch_search.h"

#include <algorithm>

namespace trireme::detail {

std::vector<std::int64_t> divisors_of(std::int64_t batch) {
  std::vector<std::int64_t> divisors;
  for (std::int64_t size = 1; size * size <= batch; ++size) {
    if (batch % size == 0) {
      divisors.push_back(size);
      if (size * size != batch) {
        divisors.push_back(batch / size);
      }
    }
  }
  std::sort(divisors.begin(), divisors.end());
  return divisors;
}

std::int64_t smaller_micro_batch(std::int64_t batch, std::int64_t micro_batch) {
  std::int64_t result = 0;
  for (const std::int64_t size : divisors_of(batch)) {
    result = size < micro_batch ? size : result;
  }
  return result;
}

std::int64_t largest_micro_batch(std::int64_t batch,
                                 std::int64_t most,
                                 const std::function<bool(std::int64_t micro_batch)>& fits,
                                 Communicator& ranks) {
  std::int64_t best = 0;
  for (const std::int64_t size : divisors_of(batch)) {
    if (size > most) {
      break;
    }
    std::vector<std::int32_t> everywhere = {fits(size) ? 1 : 0};
    ranks.all_reduce(everywhere, ReduceOp::kMin).wait();
    if (everywhere[0] == 0) {
      break;
    }
    best = size;
  }
  return best;
}

}  // namespace trireme::detail
