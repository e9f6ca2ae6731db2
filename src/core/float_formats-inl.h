// How a stored element becomes lanes of an accumulator and back: float32 and float64 as they are,
// 16-bit floats through float32, rounded to nearest with ties to even. Included once per
// instruction set, after highway.h (hence the toggling guard, Highway's way).

#if defined(TRIREME_CORE_FLOAT_FORMATS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TRIREME_CORE_FLOAT_FORMATS_INL_H
#undef TRIREME_CORE_FLOAT_FORMATS_INL_H
#else
#define TRIREME_CORE_FLOAT_FORMATS_INL_H
#endif

#include <cstdint>

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace trireme::detail::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class T>
struct Plain {  // float32, float64: accumulate in their own type
  using Stored = T;
  using Tag = hn::ScalableTag<T>;
  static HWY_INLINE hn::Vec<Tag> load(Tag d, const T* from) { return hn::LoadU(d, from); }
  static HWY_INLINE void store(Tag d, hn::Vec<Tag> value, T* to) { hn::StoreU(value, d, to); }
};

struct Brain {  // bfloat16: the upper half of a float32
  using Stored = std::uint16_t;
  using Tag = hn::ScalableTag<float>;
  static HWY_INLINE hn::Vec<Tag> load(Tag d, const Stored* from) {
    const hn::RebindToUnsigned<Tag> du;
    const hn::Rebind<Stored, Tag> d16;
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(d16, from))));
  }
  static HWY_INLINE void store(Tag, hn::Vec<Tag> value, Stored* to) {
    const hn::RebindToUnsigned<Tag> du;
    const hn::RebindToSigned<Tag> di;
    const hn::Rebind<Stored, Tag> d16;
    const auto bits = hn::BitCast(du, value);
    // Round to nearest, ties to even; a NaN keeps its upper half and is made quiet.
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
    const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7FFF))));
    const auto quiet = hn::Or(hn::ShiftRight<16>(bits), hn::Set(du, 0x40));
    const auto half = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(value)), quiet, rounded);
    hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di, half)), d16, to);
  }
};

struct Ieee {  // float16
  using Stored = std::uint16_t;
  using Tag = hn::ScalableTag<float>;
  static HWY_INLINE hn::Vec<Tag> load(Tag d, const Stored* from) {
    const hn::RebindToUnsigned<Tag> du;
    const hn::RebindToSigned<Tag> di;
    const hn::Rebind<Stored, Tag> d16;
    const auto half = hn::PromoteTo(du, hn::LoadU(d16, from));
    const auto sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(du, 0x8000)));
    const auto magnitude = hn::And(half, hn::Set(du, 0x7FFF));
    // Normal numbers move the exponent's bias from 15 to 127; infinity and NaN go to 255.
    const auto wide = hn::ShiftLeft<13>(magnitude);
    const auto special = hn::Gt(hn::BitCast(di, magnitude), hn::Set(di, 0x7BFF));
    const auto rebias = hn::IfThenElse(
        hn::RebindMask(du, special), hn::Set(du, 224u << 23), hn::Set(du, 112u << 23));
    const auto normal = hn::Add(wide, rebias);
    // Subnormal numbers are whole multiples of 2^-24; converting the integer stays exact also
    // where the processor flushes subnormal floats to zero.
    const auto tiny = hn::BitCast(
        du, hn::Mul(hn::ConvertTo(d, hn::BitCast(di, magnitude)), hn::Set(d, 0x1p-24f)));
    const auto subnormal = hn::Lt(hn::BitCast(di, magnitude), hn::Set(di, 0x0400));
    return hn::BitCast(d,
                       hn::Or(sign, hn::IfThenElse(hn::RebindMask(du, subnormal), tiny, normal)));
  }
  static HWY_INLINE void store(Tag d, hn::Vec<Tag> value, Stored* to) {
    const hn::RebindToUnsigned<Tag> du;
    const hn::RebindToSigned<Tag> di;
    const hn::Rebind<Stored, Tag> d16;
    const auto bits = hn::BitCast(du, value);
    const auto sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 0x8000));
    const auto magnitude = hn::And(bits, hn::Set(du, 0x7FFFFFFF));
    const auto signed_magnitude = hn::BitCast(di, magnitude);
    // Normal results: round at bit 13, ties to even; a carry into the exponent is right, and one
    // past the largest number gives infinity.
    const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 1));
    const auto rounded = hn::ShiftRight<13>(
        hn::Add(hn::Sub(magnitude, hn::Set(du, 112u << 23)), hn::Add(odd, hn::Set(du, 0xFFF))));
    // Results below 2^-14: adding 0.5 puts the rounding of the addition at bit 2^-24.
    const auto magic = hn::Set(d, 0.5f);
    const auto tiny =
        hn::Sub(hn::BitCast(du, hn::Add(hn::BitCast(d, magnitude), magic)), hn::BitCast(du, magic));
    const auto is_tiny = hn::Lt(signed_magnitude, hn::Set(di, 113 << 23));
    // From 65520 on the nearest is infinity.
    const auto is_large = hn::Gt(signed_magnitude, hn::Set(di, 0x477FEFFF));
    auto half = hn::IfThenElse(hn::RebindMask(du, is_tiny), tiny, rounded);
    half = hn::IfThenElse(hn::RebindMask(du, is_large), hn::Set(du, 0x7C00), half);
    const auto nan =
        hn::Or(hn::Set(du, 0x7E00), hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 0x03FF)));
    half = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(value)), nan, half);
    hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di, hn::Or(half, sign))), d16, to);
  }
};

}  // namespace trireme::detail::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
