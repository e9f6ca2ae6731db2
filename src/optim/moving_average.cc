#include "trireme/optim/moving_average.h"

#include "trireme/core/error.h"

namespace trireme {
namespace {

template <class T>
void average_into(T* __restrict average,
                  const T* __restrict values,
                  std::int64_t numel,
                  double decay) {
  const auto kept = static_cast<T>(decay);
  const auto added = static_cast<T>(1 - decay);
  for (std::int64_t i = 0; i < numel; ++i) {
    average[i] = kept * average[i] + added * values[i];
  }
}

}  // namespace

void update_moving_average(
    Dtype dtype, void* average, const void* values, std::int64_t numel, double decay) {
  TRIREME_CHECK(decay >= 0 && decay <= 1, "a moving average's decay is from 0 to 1, found ", decay);
  if (dtype == Dtype::kFloat64) {
    average_into(static_cast<double*>(average), static_cast<const double*>(values), numel, decay);
    return;
  }
  TRIREME_CHECK(dtype == Dtype::kFloat32,
                "moving averages are float32 or float64, found ",
                dtype_name(dtype));
  average_into(static_cast<float*>(average), static_cast<const float*>(values), numel, decay);
}

}  // namespace trireme
