// Compiled once per instruction set by Highway's foreach_target.
#undef HWY_TARGET_INCLUDE
// NOLINTNEXTLINE(readability-identifier-naming): Highway's name
#define HWY_TARGET_INCLUDE "device/host/copy_kernels.cc"
// clang-format off: foreach_target.h must come before highway.h
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include "device/host/copy_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::device::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// A finite number times 0 is 0; everything else is not a number, and stays that in a sum.
template <bool kCopy, class Float>
bool copy_floats(Float* to, const Float* from, std::size_t numel) {
  const hn::ScalableTag<Float> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto zero = hn::Zero(d);
  // Several sums: the next term of one has to wait for the last.
  auto a = zero;
  auto b = zero;
  auto c = zero;
  auto e = zero;
  const auto look = [&](auto sum, std::size_t at) HWY_ATTR {
    const auto value = hn::LoadU(d, from + at);
    if constexpr (kCopy) {
      hn::StoreU(value, d, to + at);
    }
    return hn::MulAdd(value, zero, sum);
  };
  std::size_t at = 0;
  for (; at + 4 * lanes <= numel; at += 4 * lanes) {
    a = look(a, at);
    b = look(b, at + lanes);
    c = look(c, at + 2 * lanes);
    e = look(e, at + 3 * lanes);
  }
  Float rest = 0;
  for (; at < numel; ++at) {
    if constexpr (kCopy) {
      to[at] = from[at];
    }
    rest += from[at] * Float{0};
  }
  const auto sum = hn::Add(hn::Add(a, b), hn::Add(c, e));
  return hn::AllTrue(d, hn::Eq(sum, zero)) && rest == 0;
}

// A float of 16 bits is finite when its exponent is not all ones.
template <bool kCopy>
bool copy_halves(std::uint16_t* to,
                 const std::uint16_t* from,
                 std::size_t numel,
                 std::uint16_t exponent) {
  const hn::ScalableTag<std::uint16_t> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto mask = hn::Set(d, exponent);
  auto bad = hn::Zero(d);
  std::size_t at = 0;
  for (; at + lanes <= numel; at += lanes) {
    const auto value = hn::LoadU(d, from + at);
    if constexpr (kCopy) {
      hn::StoreU(value, d, to + at);
    }
    bad = hn::Or(bad, hn::VecFromMask(d, hn::Eq(hn::And(value, mask), mask)));
  }
  bool finite = hn::AllTrue(d, hn::Eq(bad, hn::Zero(d)));
  for (; at < numel; ++at) {
    if constexpr (kCopy) {
      to[at] = from[at];
    }
    finite &= (from[at] & exponent) != exponent;
  }
  return finite;
}

template <bool kCopy>
bool visit(Dtype dtype, void* to, const void* from, std::size_t numel) {
  switch (dtype) {
    case Dtype::kFloat64:
      return copy_floats<kCopy>(static_cast<double*>(to), static_cast<const double*>(from), numel);
    case Dtype::kFloat32:
      return copy_floats<kCopy>(static_cast<float*>(to), static_cast<const float*>(from), numel);
    default:
      return copy_halves<kCopy>(static_cast<std::uint16_t*>(to),
                                static_cast<const std::uint16_t*>(from),
                                numel,
                                dtype == Dtype::kFloat16 ? 0x7C00U : 0x7F80U);
  }
}

bool copy_any(Dtype dtype, void* to, const void* from, std::size_t numel) {
  return visit<true>(dtype, to, from, numel);
}

bool check_any(Dtype dtype, const void* from, std::size_t numel) {
  return visit<false>(dtype, nullptr, from, numel);
}

}  // namespace trireme::device::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::device {

HWY_EXPORT(copy_any);
HWY_EXPORT(check_any);

bool copy_finite(Dtype dtype, void* to, const void* from, std::int64_t numel) {
  return HWY_DYNAMIC_DISPATCH(copy_any)(dtype, to, from, static_cast<std::size_t>(numel));
}

bool all_finite(Dtype dtype, const void* data, std::int64_t numel) {
  return HWY_DYNAMIC_DISPATCH(check_any)(dtype, data, static_cast<std::size_t>(numel));
}

}  // namespace trireme::device
#endif  // HWY_ONCE
