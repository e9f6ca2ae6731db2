#include "checkpoint/convert.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "trireme/core/error.h"
#include "trireme/shard/state_view.h"

namespace trireme::detail {
namespace {

float from_bfloat16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

std::uint16_t to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) {
    return static_cast<std::uint16_t>((bits >> 16) | 0x40);  // stays a NaN
  }
  return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

float from_float16(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1f;
  const std::uint32_t mantissa = bits & 0x3ff;
  if (exponent == 0) {  // zero, or below the smallest normal number
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
  }
  const std::uint32_t wide = exponent == 0x1f ? 0xff : exponent + 112;
  return std::bit_cast<float>(sign | (wide << 23) | (mantissa << 13));
}

std::uint16_t to_float16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000);
  const std::uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) {
    return static_cast<std::uint16_t>(sign | 0x7e00 | ((magnitude >> 13) & 0x3ff));
  }
  if (magnitude >= 0x477ff000) {  // rounds to more than the largest
    return static_cast<std::uint16_t>(sign | 0x7c00);
  }
  if (magnitude < 0x38800000) {
    // Below the smallest normal number: adding 0.5 leaves the rounded mantissa in the last bits.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<std::uint16_t>(
        sign | (std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(0.5F)));
  }
  const std::uint32_t rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
  return static_cast<std::uint16_t>(sign | ((rounded - (112U << 23)) >> 13));
}

// The nearest float towards zero, with its last bit set where something was cut off. Rounding it to
// a narrower type gives what rounding the double once would give; the nearest float would not.
float to_odd_float(double value) {
  const auto nearest = static_cast<float>(value);
  if (!std::isfinite(nearest) || static_cast<double>(nearest) == value) {
    return nearest;
  }
  auto bits = std::bit_cast<std::uint32_t>(nearest);
  if (std::fabs(static_cast<double>(nearest)) > std::fabs(value)) {
    --bits;
  }
  return std::bit_cast<float>(bits | 1);
}

template <class T>
T load(const std::byte* from, std::int64_t i) {
  T value;
  std::memcpy(&value, from + static_cast<std::size_t>(i) * sizeof(T), sizeof(T));
  return value;
}

template <class T>
void store(std::byte* to, std::int64_t i, T value) {
  std::memcpy(to + static_cast<std::size_t>(i) * sizeof(T), &value, sizeof(T));
}

double value_at(Dtype dtype, const std::byte* from, std::int64_t i) {
  switch (dtype) {
    case Dtype::kFloat32:
      return load<float>(from, i);
    case Dtype::kFloat64:
      return load<double>(from, i);
    case Dtype::kFloat16:
      return from_float16(load<std::uint16_t>(from, i));
    case Dtype::kBFloat16:
      return from_bfloat16(load<std::uint16_t>(from, i));
    default:
      throw InternalError("integers are not converted");
  }
}

void put_at(Dtype dtype, std::byte* to, std::int64_t i, double value) {
  switch (dtype) {
    case Dtype::kFloat32:
      return store(to, i, static_cast<float>(value));
    case Dtype::kFloat64:
      return store(to, i, value);
    case Dtype::kFloat16:
      return store(to, i, to_float16(to_odd_float(value)));
    case Dtype::kBFloat16:
      return store(to, i, to_bfloat16(to_odd_float(value)));
    default:
      throw InternalError("integers are not converted");
  }
}

}  // namespace

bool can_convert(Dtype from, Dtype to) {
  return from == to || (is_float(from) && is_float(to));
}

void convert(Dtype from, const std::byte* in, Dtype to, std::byte* out, std::int64_t numel) {
  if (numel == 0) {
    return;  // there may be no memory either
  }
  if (from == to) {
    std::memcpy(out, in, static_cast<std::size_t>(numel) * dtype_bytes(from));
    return;
  }
  for (std::int64_t i = 0; i < numel; ++i) {
    put_at(to, out, i, value_at(from, in, i));
  }
}

bool same_order(const std::vector<std::int64_t>& shape,
                const std::vector<std::int64_t>& a,
                const std::vector<std::int64_t>& b) {
  const std::vector<std::int64_t> first = a.empty() ? row_strides(shape) : a;
  const std::vector<std::int64_t> second = b.empty() ? row_strides(shape) : b;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] == 0) {
      return true;
    }
    if (shape[d] > 1 && first[d] != second[d]) {  // the stride of a single row means nothing
      return false;
    }
  }
  return true;
}

void reorder(const std::vector<std::int64_t>& shape,
             std::size_t element_bytes,
             const std::vector<std::int64_t>& from,
             const std::byte* in,
             const std::vector<std::int64_t>& to,
             Range range,
             std::byte* out) {
  const std::vector<std::int64_t> source = from.empty() ? row_strides(shape) : from;
  const std::vector<std::int64_t> target = to.empty() ? row_strides(shape) : to;
  // Dimensions as the target walks through them, the slowest first.
  std::vector<std::size_t> order;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] > 1) {
      order.push_back(d);
    }
  }
  std::ranges::sort(order, [&](std::size_t a, std::size_t b) { return target[a] > target[b]; });
  std::vector<std::int64_t> index(order.size());
  std::int64_t rest = range.begin;
  std::int64_t at = 0;  // in the source
  for (std::size_t k = 0; k < order.size(); ++k) {
    index[k] = rest / target[order[k]];
    rest %= target[order[k]];
    at += index[k] * source[order[k]];
  }
  for (std::int64_t i = 0; i < range.size(); ++i) {
    std::memcpy(out + static_cast<std::size_t>(i) * element_bytes,
                in + static_cast<std::size_t>(at) * element_bytes,
                element_bytes);
    for (std::size_t k = order.size(); k-- > 0;) {
      at += source[order[k]];
      if (++index[k] < shape[order[k]]) {
        break;
      }
      at -= index[k] * source[order[k]];
      index[k] = 0;
    }
  }
}

}  // namespace trireme::detail
