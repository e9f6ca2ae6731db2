#undef HWY_TARGET_INCLUDE
// NOLINTNEXTLINE(readability-identifier-naming): Highway's name
#define HWY_TARGET_INCLUDE "device/host/square_kernels.cc"
// clang-format off: foreach_target.h must come before highway.h
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include <cstring>
#include <limits>

#include "device/host/square_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::device::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Wide = hn::ScalableTag<double>;

// Elements as the update will see them, in their own precision, then widened: the square of a
// float32 is exact in double.
template <class T>
class Elements {
 public:
  Elements(const ConstSpan& data, const Scaling& scaling)
      : data_(reinterpret_cast<const T*>(data.bytes())),
        numel_(static_cast<std::size_t>(data.numel())),
        divisor_(static_cast<T>(scaling.divisor)),
        factor_(static_cast<T>(scaling.unscale)),
        scales_(scaling.divisor != 1 || scaling.unscale != 1) {}

  std::size_t numel() const { return numel_; }
  // A vector of them; there are as many.
  HWY_INLINE hn::Vec<Wide> at(std::size_t i) const { return widened(data_ + i); }
  // Those that are left, padded with zeros, which add nothing.
  HWY_INLINE hn::Vec<Wide> last(std::size_t i) const {
    HWY_ALIGN T padded[hn::MaxLanes(Wide())] = {};
    std::memcpy(padded, data_ + i, (numel_ - i) * sizeof(T));
    return widened(padded);
  }

 private:
  HWY_INLINE hn::Vec<Wide> widened(const T* from) const {
    const hn::Rebind<T, Wide> narrow;
    auto value = hn::LoadU(narrow, from);
    if (scales_) {
      value = hn::Mul(hn::Div(value, hn::Set(narrow, divisor_)), hn::Set(narrow, factor_));
    }
    if constexpr (sizeof(T) == sizeof(double)) {
      return value;
    } else {
      return hn::PromoteTo(Wide(), value);
    }
  }

  const T* data_;
  std::size_t numel_;
  T divisor_, factor_;
  bool scales_;
};

HWY_INLINE hn::Vec<Wide> larger(hn::Vec<Wide> largest, hn::Vec<Wide> value) {
  const auto infinity = hn::Set(Wide(), std::numeric_limits<double>::infinity());
  const auto magnitude = hn::IfThenElse(hn::IsNaN(value), infinity, hn::Abs(value));
  return hn::IfThenElse(hn::Gt(magnitude, largest), magnitude, largest);
}

// Two vectors at a time, here and below: each addition has to wait for the one before it, and
// neither order nor number of the sums matters.
template <class T>
double largest_of(const ConstSpan& data, const Scaling& scaling) {
  const Wide d;
  const std::size_t lanes = hn::Lanes(d);
  const Elements<T> elements(data, scaling);
  const std::size_t numel = elements.numel();
  auto even = hn::Zero(d);
  auto odd = hn::Zero(d);
  std::size_t i = 0;
  for (; i + 2 * lanes <= numel; i += 2 * lanes) {
    even = larger(even, elements.at(i));
    odd = larger(odd, elements.at(i + lanes));
  }
  for (; i < numel; i += lanes) {
    even = larger(even, i + lanes <= numel ? elements.at(i) : elements.last(i));
  }
  return hn::GetLane(hn::MaxOfLanes(d, larger(even, odd)));
}

HWY_INLINE void add_square(hn::Vec<Wide> value,
                           const SquareQuanta& quanta,
                           hn::Vec<Wide>& coarse_sum,
                           hn::Vec<Wide>& fine_sum) {
  const auto coarse = hn::Set(Wide(), quanta.coarse);
  const auto fine = hn::Set(Wide(), quanta.fine);
  const auto square = hn::Mul(value, value);
  const auto multiple = hn::Sub(hn::Add(square, coarse), coarse);
  const auto rest = hn::Sub(square, multiple);
  coarse_sum = hn::Add(coarse_sum, multiple);
  fine_sum = hn::Add(fine_sum, hn::Sub(hn::Add(rest, fine), fine));
}

template <class T>
SquareSum sum_of(const ConstSpan& data, const SquareQuanta& quanta, const Scaling& scaling) {
  const Wide d;
  const std::size_t lanes = hn::Lanes(d);
  const Elements<T> elements(data, scaling);
  const std::size_t numel = elements.numel();
  auto coarse = hn::Zero(d);
  auto fine = hn::Zero(d);
  auto coarse_odd = hn::Zero(d);
  auto fine_odd = hn::Zero(d);
  std::size_t i = 0;
  for (; i + 2 * lanes <= numel; i += 2 * lanes) {
    add_square(elements.at(i), quanta, coarse, fine);
    add_square(elements.at(i + lanes), quanta, coarse_odd, fine_odd);
  }
  for (; i < numel; i += lanes) {
    add_square(i + lanes <= numel ? elements.at(i) : elements.last(i), quanta, coarse, fine);
  }
  return {hn::GetLane(hn::SumOfLanes(d, hn::Add(coarse, coarse_odd))),
          hn::GetLane(hn::SumOfLanes(d, hn::Add(fine, fine_odd)))};
}

double largest(const ConstSpan& data, const Scaling& scaling) {
  return data.dtype() == Dtype::kFloat64 ? largest_of<double>(data, scaling)
                                         : largest_of<float>(data, scaling);
}

SquareSum squares(const ConstSpan& data, const SquareQuanta& quanta, const Scaling& scaling) {
  return data.dtype() == Dtype::kFloat64 ? sum_of<double>(data, quanta, scaling)
                                         : sum_of<float>(data, quanta, scaling);
}

}  // namespace trireme::device::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::device {

HWY_EXPORT(largest);
HWY_EXPORT(squares);

double largest_magnitude(const ConstSpan& data, const Scaling& scaling) {
  return HWY_DYNAMIC_DISPATCH(largest)(data, scaling);
}

SquareSum sum_squares(const ConstSpan& data, const SquareQuanta& quanta, const Scaling& scaling) {
  return quanta.coarse == 0 ? SquareSum{} : HWY_DYNAMIC_DISPATCH(squares)(data, quanta, scaling);
}

}  // namespace trireme::device
#endif  // HWY_ONCE
