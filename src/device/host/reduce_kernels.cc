// Compiled once per instruction set by Highway's foreach_target; `reduce` picks the best at run
// time. Note [same bits]: every element goes through the same vector instructions, the ragged end
// included (it is copied into a padded vector first), and this file is built with
// -ffp-contract=off, so the result is the same whatever the split.
#undef HWY_TARGET_INCLUDE
// NOLINTNEXTLINE(readability-identifier-naming): Highway's name
#define HWY_TARGET_INCLUDE "device/host/reduce_kernels.cc"
// clang-format off: foreach_target.h must come before highway.h
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include <algorithm>
#include <cstring>

#include "core/float_formats-inl.h"
#include "device/host/reduce_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::device::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using detail::HWY_NAMESPACE::Brain;
using detail::HWY_NAMESPACE::Ieee;
using detail::HWY_NAMESPACE::Plain;

template <ReduceOp kOp, class D, class V = hn::Vec<D>>
HWY_INLINE V combine(D, V accumulated, V next) {
  if constexpr (kOp == ReduceOp::kSum || kOp == ReduceOp::kAverage) {
    return hn::Add(accumulated, next);
  } else {
    // Masks, not hn::Min and hn::Max: those differ between machines on NaN and on signed zeros.
    const auto better =
        kOp == ReduceOp::kMin ? hn::Lt(next, accumulated) : hn::Lt(accumulated, next);
    const auto chosen = hn::IfThenElse(hn::Or(better, hn::IsNaN(next)), next, accumulated);
    return hn::IfThenElse(hn::IsNaN(accumulated), accumulated, chosen);
  }
}

// kInputs 0: as many as `inputs` has. The common small counts are unrolled by the compiler.
template <class Format, ReduceOp kOp, int kInputs>
HWY_INLINE void reduce_lanes(const typename Format::Stored* const* inputs,
                             std::size_t input_count,
                             typename Format::Stored* const* outputs,
                             std::size_t output_count,
                             std::size_t at,
                             hn::Vec<typename Format::Tag> divisor) {
  const typename Format::Tag d;
  const std::size_t count = kInputs > 0 ? kInputs : input_count;
  auto sum = Format::load(d, inputs[0] + at);
  for (std::size_t k = 1; k < count; ++k) {
    sum = combine<kOp>(d, sum, Format::load(d, inputs[k] + at));
  }
  if constexpr (kOp == ReduceOp::kAverage) {
    sum = hn::Div(sum, divisor);
  }
  for (std::size_t k = 0; k < output_count; ++k) {
    Format::store(d, sum, outputs[k] + at);
  }
}

template <class Format, ReduceOp kOp, int kInputs>
void reduce_streams(const Reduction& r) {
  using Stored = typename Format::Stored;
  using Lane = hn::TFromD<typename Format::Tag>;
  const typename Format::Tag d;
  const std::size_t lanes = hn::Lanes(d);
  const auto divisor = hn::Set(d, static_cast<Lane>(r.divisor));
  const auto* const* inputs = reinterpret_cast<const Stored* const*>(r.inputs.data());
  auto* const* outputs = reinterpret_cast<Stored* const*>(r.outputs.data());
  const std::size_t input_count = r.inputs.size();
  const std::size_t output_count = r.outputs.size();

  std::size_t at = 0;
  for (; at + 2 * lanes <= r.numel; at += 2 * lanes) {
    reduce_lanes<Format, kOp, kInputs>(inputs, input_count, outputs, output_count, at, divisor);
    reduce_lanes<Format, kOp, kInputs>(
        inputs, input_count, outputs, output_count, at + lanes, divisor);
  }
  for (; at + lanes <= r.numel; at += lanes) {
    reduce_lanes<Format, kOp, kInputs>(inputs, input_count, outputs, output_count, at, divisor);
  }
  if (at < r.numel) {
    // See Note [same bits]: the end goes through a padded vector and the same instructions.
    const std::size_t rest = r.numel - at;
    HWY_ALIGN Stored padded[hn::MaxLanes(d)] = {};
    std::memcpy(padded, inputs[0] + at, rest * sizeof(Stored));
    auto sum = Format::load(d, padded);
    for (std::size_t k = 1; k < input_count; ++k) {
      std::memcpy(padded, inputs[k] + at, rest * sizeof(Stored));
      sum = combine<kOp>(d, sum, Format::load(d, padded));
    }
    if constexpr (kOp == ReduceOp::kAverage) {
      sum = hn::Div(sum, divisor);
    }
    Format::store(d, sum, padded);
    for (std::size_t k = 0; k < output_count; ++k) {
      std::memcpy(outputs[k] + at, padded, rest * sizeof(Stored));
    }
  }
}

template <class Format, ReduceOp kOp>
void reduce_counted(const Reduction& r) {
  switch (r.inputs.size()) {
    case 2:
      return reduce_streams<Format, kOp, 2>(r);
    case 3:
      return reduce_streams<Format, kOp, 3>(r);
    case 4:
      return reduce_streams<Format, kOp, 4>(r);
    default:
      return reduce_streams<Format, kOp, 0>(r);
  }
}

template <class Format>
void reduce_format(const Reduction& r) {
  switch (r.op) {
    case ReduceOp::kSum:
      return reduce_counted<Format, ReduceOp::kSum>(r);
    case ReduceOp::kAverage:
      return reduce_counted<Format, ReduceOp::kAverage>(r);
    case ReduceOp::kMin:
      return reduce_counted<Format, ReduceOp::kMin>(r);
    case ReduceOp::kMax:
      return reduce_counted<Format, ReduceOp::kMax>(r);
  }
}

// 16-bit floats into float32: the same chain, not rounded at its end.
template <class Format>
void widen_sum(const Reduction& r) {
  using Stored = typename Format::Stored;
  const typename Format::Tag d;
  const std::size_t lanes = hn::Lanes(d);
  const auto* const* inputs = reinterpret_cast<const Stored* const*>(r.inputs.data());
  const auto* accumulator = reinterpret_cast<const float*>(r.accumulator);
  const auto chain = [&](const auto& load_input, const auto& load_accumulator) HWY_ATTR {
    std::size_t k = 0;
    auto sum = accumulator != nullptr ? load_accumulator() : load_input(k++);
    for (; k < r.inputs.size(); ++k) {
      sum = hn::Add(sum, load_input(k));
    }
    return sum;
  };
  std::size_t at = 0;
  for (; at + lanes <= r.numel; at += lanes) {
    const auto sum = chain([&](std::size_t k) HWY_ATTR { return Format::load(d, inputs[k] + at); },
                           [&]() HWY_ATTR { return hn::LoadU(d, accumulator + at); });
    for (std::byte* output : r.outputs) {
      hn::StoreU(sum, d, reinterpret_cast<float*>(output) + at);
    }
  }
  if (at < r.numel) {
    // See Note [same bits].
    const std::size_t rest = r.numel - at;
    HWY_ALIGN Stored padded[hn::MaxLanes(d)] = {};
    HWY_ALIGN float wide[hn::MaxLanes(d)] = {};
    const auto sum = chain(
        [&](std::size_t k) HWY_ATTR {
          std::memcpy(padded, inputs[k] + at, rest * sizeof(Stored));
          return Format::load(d, padded);
        },
        [&]() HWY_ATTR {
          std::memcpy(wide, accumulator + at, rest * sizeof(float));
          return hn::LoadU(d, wide);
        });
    hn::StoreU(sum, d, wide);
    for (std::byte* output : r.outputs) {
      std::memcpy(output + at * sizeof(float), wide, rest * sizeof(float));
    }
  }
}

template <class Format>
void round_to(const float* from, std::byte* to, std::size_t numel) {
  using Stored = typename Format::Stored;
  const typename Format::Tag d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t at = 0;
  for (; at + lanes <= numel; at += lanes) {
    Format::store(d, hn::LoadU(d, from + at), reinterpret_cast<Stored*>(to) + at);
  }
  if (at < numel) {
    // See Note [same bits].
    const std::size_t rest = numel - at;
    HWY_ALIGN float wide[hn::MaxLanes(d)] = {};
    HWY_ALIGN Stored padded[hn::MaxLanes(d)] = {};
    std::memcpy(wide, from + at, rest * sizeof(float));
    Format::store(d, hn::LoadU(d, wide), padded);
    std::memcpy(to + at * sizeof(Stored), padded, rest * sizeof(Stored));
  }
}

void round_half(Dtype dtype, const float* from, std::byte* to, std::size_t numel) {
  return dtype == Dtype::kFloat16 ? round_to<Ieee>(from, to, numel)
                                  : round_to<Brain>(from, to, numel);
}

void reduce_floats(const Reduction& r) {
  if (r.widen) {
    return r.dtype == Dtype::kFloat16 ? widen_sum<Ieee>(r) : widen_sum<Brain>(r);
  }
  switch (r.dtype) {
    case Dtype::kFloat32:
      return reduce_format<Plain<float>>(r);
#if HWY_HAVE_FLOAT64
    case Dtype::kFloat64:
      return reduce_format<Plain<double>>(r);
#endif
    case Dtype::kFloat16:
      return reduce_format<Ieee>(r);
    default:
      return reduce_format<Brain>(r);
  }
}

}  // namespace trireme::device::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::device {
namespace {

HWY_EXPORT(reduce_floats);
HWY_EXPORT(round_half);

// Integers are exact in any order and need no vector code of their own. `Wide` holds sums.
template <class T, class Wide>
void reduce_integers(const Reduction& r) {
  using Unsigned = std::make_unsigned_t<Wide>;
  for (std::size_t i = 0; i < r.numel; ++i) {
    const auto element = [&](std::size_t k) { return reinterpret_cast<const T*>(r.inputs[k])[i]; };
    // A signed char is a number here, not a character.
    auto value = static_cast<Wide>(element(0));  // NOLINT(bugprone-signed-char-misuse)
    for (std::size_t k = 1; k < r.inputs.size(); ++k) {
      const auto next = static_cast<Wide>(element(k));  // NOLINT(bugprone-signed-char-misuse)
      switch (r.op) {
        case ReduceOp::kSum:
        case ReduceOp::kAverage:  // unsigned, because overflow must wrap and not be undefined
          value = static_cast<Wide>(static_cast<Unsigned>(value) + static_cast<Unsigned>(next));
          break;
        case ReduceOp::kMin:
          value = std::min(value, next);
          break;
        case ReduceOp::kMax:
          value = std::max(value, next);
          break;
      }
    }
    if (r.op == ReduceOp::kAverage) {
      value /= static_cast<Wide>(r.divisor);
    }
    for (std::byte* output : r.outputs) {
      reinterpret_cast<T*>(output)[i] = static_cast<T>(value);
    }
  }
}

}  // namespace

void reduce(const Reduction& reduction) {
  switch (reduction.dtype) {
    case Dtype::kInt32:
      return reduce_integers<std::int32_t, std::int64_t>(reduction);
    case Dtype::kInt64:
      return reduce_integers<std::int64_t, std::int64_t>(reduction);
    case Dtype::kInt16:
      return reduce_integers<std::int16_t, std::int64_t>(reduction);
    case Dtype::kInt8:
      return reduce_integers<std::int8_t, std::int64_t>(reduction);
    case Dtype::kUint8:
    case Dtype::kBool:  // minimum and maximum only
      return reduce_integers<std::uint8_t, std::int64_t>(reduction);
    default:
      return HWY_DYNAMIC_DISPATCH(reduce_floats)(reduction);
  }
}

void round_floats(Dtype dtype, const float* from, std::byte* to, std::size_t numel) {
  HWY_DYNAMIC_DISPATCH(round_half)(dtype, from, to, numel);
}

}  // namespace trireme::device
#endif  // HWY_ONCE
