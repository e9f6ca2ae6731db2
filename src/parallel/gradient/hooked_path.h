#pragma once

#include "parallel/gradient/bucket_path.h"

namespace trireme::detail {

// A user's sum instead of ours (EngineOptions::gradient_hook), called for every bucket in each
// round; by a process alone once in a step. It has no absent terms: they are zeros.
class HookedPath final : public BucketPath {
 public:
  HookedPath(const PartContext& context, GradientSums& sums)
      : BucketPath(context, sums, /*launches=*/true) {}

 protected:
  void launch(const Ready& ready) override;
};

}  // namespace trireme::detail
