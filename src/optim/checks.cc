#include "optim/checks.h"

#include <cmath>

#include "trireme/core/error.h"

namespace trireme::detail {

void check_rate(const char* rule, double lr) {
  TRIREME_CHECK(
      std::isfinite(lr) && lr >= 0, rule, ": lr must be a number of 0 or more, found ", lr);
}

void check_beta(const char* rule, const char* name, double beta) {
  TRIREME_CHECK(
      beta >= 0 && beta < 1, rule, ": ", name, " must be from 0 to below 1, found ", beta);
}

void check_not_negative(const char* rule, const char* name, double value) {
  TRIREME_CHECK(
      std::isfinite(value) && value >= 0, rule, ": ", name, " cannot be negative, found ", value);
}

void check_slice(const Optimizer& rule, const ParameterSlice& slice) {
  TRIREME_CHECK(slice.dtype == Dtype::kFloat32 || slice.dtype == Dtype::kFloat64,
                rule.name(),
                ": masters are float32 or float64, found ",
                dtype_name(slice.dtype));
  TRIREME_CHECK(slice.low == nullptr ||
                    (slice.dtype == Dtype::kFloat32 &&
                     (slice.low_dtype == Dtype::kBFloat16 || slice.low_dtype == Dtype::kFloat16)),
                rule.name(),
                ": a low-precision copy is bfloat16 or float16, of a float32 master");
  TRIREME_CHECK(slice.step >= 1, rule.name(), ": steps count from 1, found ", slice.step);
  for (int state = 0; state < rule.state_count(); ++state) {
    TRIREME_CHECK(slice.numel == 0 || slice.states[static_cast<std::size_t>(state)] != nullptr,
                  rule.name(),
                  ": needs ",
                  rule.state_count(),
                  " states, found ",
                  state);
  }
}

void check_positive(const char* rule, const char* name, double value) {
  TRIREME_CHECK(
      std::isfinite(value) && value > 0, rule, ": ", name, " must be above 0, found ", value);
}

}  // namespace trireme::detail
