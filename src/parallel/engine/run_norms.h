#pragma once

#include <vector>

#include "device/buffer.h"
#include "trireme/core/span.h"
#include "trireme/device/square_sum.h"

namespace trireme::detail {

// Norms of this rank's runs of gradients, which are all on one device: a GPU's results are waited
// for.
class RunNorms {
 public:
  RunNorms(Device device, const Scaling& scaling);
  // For other runs, in the same memory.
  void begin_again(const Scaling& scaling);

  // Infinity where an element is not finite.
  double largest(const std::vector<ConstSpan>& runs);
  SquareSum squares(const std::vector<ConstSpan>& runs, const SquareQuanta& quanta);
  static bool any_nan(const std::vector<ConstSpan>& runs);

 private:
  struct Results {
    double largest;
    SquareSum sum;
  };

  Device device_;
  Scaling scaling_;
  device::Buffer memory_;  // that both sides see
  Results& results_;
};

}  // namespace trireme::detail
