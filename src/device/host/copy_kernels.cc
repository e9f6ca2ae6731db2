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

// A float is finite when its exponent is not all ones, whatever its width.
template <bool kCopy, class Bits>
bool copy_bits(Bits* to, const Bits* from, std::size_t numel, Bits exponent) {
  const hn::ScalableTag<Bits> d;
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
      return copy_bits<kCopy, std::uint64_t>(static_cast<std::uint64_t*>(to),
                                             static_cast<const std::uint64_t*>(from),
                                             numel,
                                             0x7FF0000000000000ULL);
    case Dtype::kFloat32:
      return copy_bits<kCopy, std::uint32_t>(static_cast<std::uint32_t*>(to),
                                             static_cast<const std::uint32_t*>(from),
                                             numel,
                                             0x7F800000U);
    default:
      return copy_bits<kCopy, std::uint16_t>(static_cast<std::uint16_t*>(to),
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
