#pragma once

#include <vector>

#include "parallel/memory/bucket_ring.h"
#include "parallel/memory/gradient_sums.h"
#include "trireme/shard/bucket_plan.h"

namespace trireme::detail {

// Where buckets are while they are filled and summed.
class BucketMemory {
 public:
  enum class Space {
    kInPlace,  // whole gradients of the unit, in which each rank's range becomes sums (one round)
    kRing,     // a few buckets that are used over and over (everything else)
    kLocal,    // whole gradients of this rank (SumOrder::kLocalFirst where sums are divided)
  };

  BucketMemory(const PartContext& context, GradientSums& sums) : context_(context), sums_(sums) {}

  // For steps of so many rounds. Takes what memory that needs, or throws and leaves everything as
  // it was. Collective.
  void set_rounds(std::int64_t rounds, const std::vector<Bucket>& buckets);

  Space space(const Unit& unit) const { return space(unit, rounds_); }
  // Of gradients in a bucket. Sums that go back into it have their own precision.
  Dtype dtype(const Unit& unit) const;
  // Memory of a bucket; `slot` of the ring, where it is there.
  Span run(const Bucket& bucket, int slot) const;

  BucketRing& ring() { return ring_; }

 private:
  Space space(const Unit& unit, std::int64_t rounds) const;

  PartContext context_;
  GradientSums& sums_;
  std::int64_t rounds_ = 1;
  BucketRing ring_;
};

}  // namespace trireme::detail
