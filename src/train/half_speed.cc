#include "trireme/train/half_speed.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include "trireme/core/error.h"
#include "trireme/core/printed.h"

namespace trireme {
namespace {

constexpr double kFairPrice = 3;
constexpr std::int64_t kRows = 64;
constexpr std::int64_t kWidth = 256;

// LibTorch warns of a product that it has no fast kernel for, with a trace of its calls. What that
// means is said in our own words.
class NoWarnings final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& /*warning*/) override {}
};

// The shortest of a few: what else the machine does only makes it longer.
double seconds_of_product(at::ScalarType type) {
  const at::NoGradGuard no_grad;
  const at::Tensor a = at::ones({kRows, kWidth}, at::TensorOptions().dtype(type));
  const at::Tensor b = at::ones({kWidth, kWidth}, at::TensorOptions().dtype(type));
  double least = INFINITY;
  for (int i = 0; i < 4; ++i) {
    const auto start = std::chrono::steady_clock::now();
    const at::Tensor product = at::mm(a, b);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    least = std::min(least, taken.count());
  }
  return least;
}

}  // namespace

double slowdown_of_precision(TrainPrecision precision) {
  if (precision == TrainPrecision::kFloat32) {
    return 1;
  }
  NoWarnings nothing;
  const c10::WarningUtils::WarningHandlerGuard quiet(&nothing);
  const at::ScalarType type = precision == TrainPrecision::kFloat16 ? at::kHalf : at::kBFloat16;
  return seconds_of_product(type) / seconds_of_product(at::kFloat);
}

std::string slow_precision_warning(TrainPrecision precision, double slowdown) {
  if (!(slowdown > kFairPrice)) {
    return "";
  }
  return detail::concat("warning: on this processor a matrix product takes about ",
                        detail::rough_ratio(slowdown),
                        " times as long in ",
                        precision == TrainPrecision::kFloat16    ? "float16"
                        : precision == TrainPrecision::kAutocast ? "bfloat16 (--precision autocast)"
                                                                 : "bfloat16",
                        " as in float32: --precision float32 trains faster here");
}

}  // namespace trireme
