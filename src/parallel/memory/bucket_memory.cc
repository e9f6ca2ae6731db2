#include "parallel/memory/bucket_memory.h"

#include <algorithm>

namespace trireme::detail {

BucketMemory::Space BucketMemory::space(const Unit& unit, std::int64_t rounds) const {
  const bool divided = context_.plan.ownership.divides_sums();
  if (context_.adds_locally()) {
    return divided ? Space::kLocal : Space::kInPlace;
  }
  // 16-bit gradients are summed in float32, so not where they are.
  return !divided && rounds == 1 && !unit.narrow() ? Space::kInPlace : Space::kRing;
}

Dtype BucketMemory::dtype(const Unit& unit) const {
  return context_.adds_locally() || context_.plan.ownership.by_machine() ? unit.sum_dtype()
                                                                         : unit.dtype;
}

void BucketMemory::set_rounds(std::int64_t rounds, const std::vector<Bucket>& buckets) {
  std::size_t slot_bytes = 0;
  for (const Bucket& bucket : buckets) {
    const Unit& unit = context_.plan.units[bucket.unit];
    if (space(unit, rounds) == Space::kRing) {
      slot_bytes = std::max(
          slot_bytes, static_cast<std::size_t>(bucket.range.size()) * dtype_bytes(dtype(unit)));
    }
  }
  if (slot_bytes > ring_.slot_bytes()) {
    const auto most = static_cast<std::size_t>(context_.options.bucket_count);
    ring_ = BucketRing(context_.ranks,
                       slot_bytes,
                       std::min(most, buckets.size()),
                       context_.ledger,
                       context_.plan.device);
  }
  rounds_ = rounds;
}

Span BucketMemory::run(const Bucket& bucket, int slot) const {
  const Unit& unit = context_.plan.units[bucket.unit];
  switch (space(unit)) {
    case Space::kInPlace:
      return sums_.at(bucket.unit, bucket.range);
    case Space::kLocal:
      return sums_.local(bucket.unit, bucket.range);
    case Space::kRing:
      break;
  }
  return ring_.run(slot, bucket.range.size(), dtype(unit));
}

}  // namespace trireme::detail
