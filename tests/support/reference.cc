#include "support/reference.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "support/ranks.h"

namespace trireme::testing {
namespace {

// 2 to the power of `exponent`, of a normal double: what std::ldexp(1, exponent) gives, in a tenth
// of the time.
double power_of_two(int exponent) {
  return std::bit_cast<double>(static_cast<std::uint64_t>(1023 + exponent) << 52);
}

// Rounds to the nearest multiple of the spacing that a format with `mantissa` bits and smallest
// normal exponent `least` has around `value`.
double round_to_format(double value, int mantissa, int least) {
  if (value == 0 || !std::isfinite(value)) {
    return value;
  }
  int exponent = 0;
  std::frexp(value, &exponent);  // value = m * 2^exponent with 0.5 <= m < 1
  const double spacing = power_of_two(std::max(exponent - 1, least) - mantissa);
  return std::nearbyint(value / spacing) * spacing;
}

template <class T>
T element(const Bytes& bytes, std::size_t i) {
  T value;
  std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
  return value;
}

template <class T>
void set_element(Bytes& bytes, std::size_t i, T value) {
  std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
}

std::uint64_t mix(std::uint64_t x) {  // splitmix64
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

template <class T>
T combine(ReduceOp op, T so_far, T next) {
  switch (op) {
    case ReduceOp::kMin:
      return so_far != so_far ? so_far : (next != next || next < so_far) ? next : so_far;
    case ReduceOp::kMax:
      return so_far != so_far ? so_far : (next != next || so_far < next) ? next : so_far;
    default:
      return so_far + next;
  }
}

// `Stored` is what is in memory, `Sum` what is added.
template <class Stored, class Sum, class Load, class Store>
Bytes reduce_as(ReduceOp op, const std::vector<Bytes>& inputs, Load load, Store store) {
  Bytes result(inputs[0].size());
  // Integers are exact in any order, minimum and maximum have none.
  const bool sums = op == ReduceOp::kSum || op == ReduceOp::kAverage;
  const std::size_t group =
      sums && std::is_floating_point_v<Sum> ? static_cast<std::size_t>(sum_group()) : inputs.size();
  for (std::size_t i = 0; i < result.size() / sizeof(Stored); ++i) {
    Sum sum{};
    for (std::size_t first = 0; first < inputs.size(); first += group) {
      Sum here = load(element<Stored>(inputs[first], i));
      for (std::size_t k = first + 1; k < std::min(inputs.size(), first + group); ++k) {
        here = combine<Sum>(op, here, load(element<Stored>(inputs[k], i)));
      }
      sum = first == 0 ? here : combine<Sum>(op, sum, here);
    }
    if (op == ReduceOp::kAverage) {
      sum = static_cast<Sum>(sum / static_cast<Sum>(inputs.size()));
    }
    set_element<Stored>(result, i, store(sum));
  }
  return result;
}

}  // namespace

double half_value(std::uint16_t bits) {
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  const int exponent = (bits >> 10) & 31;
  const int mantissa = bits & 1023;
  if (exponent == 31) {
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  }
  return exponent == 0 ? sign * mantissa * power_of_two(-24)
                       : sign * (1024 + mantissa) * power_of_two(exponent - 25);
}

std::uint16_t nearest_half(float value) {
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) {
    return static_cast<std::uint16_t>(sign | 0x7E00);
  }
  const double rounded = std::fabs(round_to_format(value, 10, -14));
  if (rounded > 65504) {
    return static_cast<std::uint16_t>(sign | 0x7C00);
  }
  if (rounded < power_of_two(-14)) {
    return static_cast<std::uint16_t>(sign | static_cast<int>(rounded * power_of_two(24)));
  }
  int exponent = 0;
  const double half_to_one = std::frexp(rounded, &exponent);
  const int mantissa = static_cast<int>(half_to_one * 2048) - 1024;
  return static_cast<std::uint16_t>(sign | (exponent + 14) << 10 | mantissa);
}

float bfloat16_value(std::uint16_t bits) {
  const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
  float value = 0;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

std::uint16_t nearest_bfloat16(float value) {
  const auto rounded = static_cast<float>(round_to_format(value, 7, -126));
  std::uint32_t wide = 0;
  std::memcpy(&wide, &rounded, sizeof(wide));
  if (std::isnan(value)) {
    wide |= 0x400000;
  }
  return static_cast<std::uint16_t>(wide >> 16);
}

Bytes make_input(Dtype dtype, std::int64_t numel, int rank) {
  Bytes bytes(static_cast<std::size_t>(numel) * dtype_bytes(dtype));
  for (std::size_t i = 0; i < static_cast<std::size_t>(numel); ++i) {
    const std::uint64_t random = mix(i * 1000003 + static_cast<std::uint64_t>(rank) * 7919 + 17);
    const double value = (static_cast<double>(random % 200001) - 100000) / 1024 *
                         power_of_two(static_cast<int>((random >> 32) % 12) - 6);
    switch (dtype) {
      case Dtype::kFloat32:
        set_element(bytes, i, static_cast<float>(value));
        break;
      case Dtype::kFloat64:
        set_element(bytes, i, value * 1.0000000001);
        break;
      case Dtype::kFloat16:
        set_element(bytes, i, nearest_half(static_cast<float>(value)));
        break;
      case Dtype::kBFloat16:
        set_element(bytes, i, nearest_bfloat16(static_cast<float>(value)));
        break;
      case Dtype::kInt32:
        set_element(bytes, i, static_cast<std::int32_t>(random));
        break;
      case Dtype::kInt64:
        set_element(bytes, i, static_cast<std::int64_t>(random) / 16);
        break;
      case Dtype::kUint8:
        set_element(bytes, i, static_cast<std::uint8_t>(random));
        break;
      case Dtype::kInt8:
        set_element(bytes, i, static_cast<std::int8_t>(random));
        break;
      case Dtype::kInt16:
        set_element(bytes, i, static_cast<std::int16_t>(random));
        break;
      case Dtype::kBool:
        set_element(bytes, i, static_cast<std::uint8_t>(random % 2));
        break;
    }
  }
  return bytes;
}

Bytes reduce_in_order(Dtype dtype, ReduceOp op, const std::vector<Bytes>& inputs) {
  const auto same = [](auto value) { return value; };
  switch (dtype) {
    case Dtype::kFloat32:
      return reduce_as<float, float>(op, inputs, same, same);
    case Dtype::kFloat64:
      return reduce_as<double, double>(op, inputs, same, same);
    case Dtype::kFloat16:
      return reduce_as<std::uint16_t, float>(
          op,
          inputs,
          [](std::uint16_t bits) { return static_cast<float>(half_value(bits)); },
          nearest_half);
    case Dtype::kBFloat16:
      return reduce_as<std::uint16_t, float>(op, inputs, bfloat16_value, nearest_bfloat16);
    case Dtype::kInt32:
      return reduce_as<std::int32_t, std::int64_t>(
          op,
          inputs,
          [](std::int32_t value) { return static_cast<std::int64_t>(value); },
          [](std::int64_t value) { return static_cast<std::int32_t>(value); });
    case Dtype::kInt64:
      return reduce_as<std::int64_t, std::int64_t>(op, inputs, same, same);
    case Dtype::kInt8:
      return reduce_as<std::int8_t, std::int64_t>(
          op,
          inputs,
          [](std::int8_t value) { return static_cast<std::int64_t>(value); },
          [](std::int64_t value) { return static_cast<std::int8_t>(value); });
    case Dtype::kInt16:
      return reduce_as<std::int16_t, std::int64_t>(
          op,
          inputs,
          [](std::int16_t value) { return static_cast<std::int64_t>(value); },
          [](std::int64_t value) { return static_cast<std::int16_t>(value); });
    default:
      return reduce_as<std::uint8_t, std::int64_t>(
          op,
          inputs,
          [](std::uint8_t value) { return static_cast<std::int64_t>(value); },
          [](std::int64_t value) { return static_cast<std::uint8_t>(value); });
  }
}

Terms::Terms(Dtype of, std::int64_t count, int size, std::initializer_list<ReduceOp> reductions)
    : dtype(of), numel(count) {
  for (int rank = 0; rank < size; ++rank) {
    inputs.push_back(make_input(dtype, numel, rank));
  }
  for (const ReduceOp op : reductions) {
    reduced[op] = reduce_in_order(dtype, op, inputs);
  }
}

}  // namespace trireme::testing
