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
constexpr int kLeastProducts = 4;
constexpr int kMostProducts = 60;
constexpr double kSeconds = 0.1;

// LibTorch warns of a product that it has no fast kernel for, with a trace of its calls. What that
// means is said in our own words.
class NoWarnings final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& /*warning*/) override {}
};

// The shortest of its products: what else the machine does only makes them longer.
class Product {
 public:
  explicit Product(at::ScalarType type)
      : a_(at::ones({kRows, kWidth}, at::TensorOptions().dtype(type))),
        b_(at::ones({kWidth, kWidth}, at::TensorOptions().dtype(type))) {}
  void take() {
    const auto start = std::chrono::steady_clock::now();
    const at::Tensor product = at::mm(a_, b_);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    least_ = std::min(least_, taken.count());
    all_ += taken.count();
  }
  double least() const { return least_; }
  double all() const { return all_; }

 private:
  at::Tensor a_, b_;
  double least_ = INFINITY;
  double all_ = 0;
};

}  // namespace

double slowdown_of_precision(TrainPrecision precision) {
  if (precision == TrainPrecision::kFloat32) {
    return 1;
  }
  NoWarnings nothing;
  const c10::WarningUtils::WarningHandlerGuard quiet(&nothing);
  const at::ScalarType type = precision == TrainPrecision::kFloat16 ? at::kHalf : at::kBFloat16;
  const at::NoGradGuard no_grad;
  Product half(type), whole(at::kFloat);
  // In turns, so that both have the same share of a machine that has more to do.
  for (int i = 0; i < kMostProducts && (i < kLeastProducts || half.all() < kSeconds); ++i) {
    half.take();
    whole.take();
  }
  return half.least() / whole.least();
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
