#include "trireme/device/square_sum.h"

#include <cmath>

#include "trireme/core/error.h"

namespace trireme {

// With 2^e >= largest^2 and L = ceil(log2(count)) + 1, adding and subtracting 1.5 * 2^(e + L)
// rounds a square to a multiple of 2^(e + L - 52). `count` such multiples stay below 2^(e + L - 1),
// 51 bits above the quantum: their sum is exact. The rest is below half that quantum, and is
// treated the same way one level down.
SquareQuanta SquareQuanta::of(double largest, std::int64_t count) {
  if (largest == 0 || count == 0) {
    return {0, 0};
  }
  TRIREME_CHECK(std::isfinite(largest),
                "a norm with infinite elements has no quanta: look at the largest first");
  int exponent = 0;
  std::frexp(largest, &exponent);  // largest < 2^exponent
  int level = 1;
  while ((std::int64_t{1} << (level - 1)) < count) {
    ++level;
  }
  const double coarse = std::ldexp(1.5, 2 * exponent + level);
  return {coarse, std::ldexp(coarse, level - 52)};
}

double SquareSum::norm() const {
  return std::sqrt(total());
}

}  // namespace trireme
