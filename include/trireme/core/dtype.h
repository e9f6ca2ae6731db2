#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace trireme {

// The element types that collectives and optimizers know. Values are part of the wire format.
enum class Dtype : std::uint8_t {
  kFloat32 = 0,
  kFloat64 = 1,
  kFloat16 = 2,
  kBFloat16 = 3,
  kInt32 = 4,
  kInt64 = 5,
  kUint8 = 6,
  kInt8 = 7,
  kInt16 = 8,
  kBool = 9,  // a byte, 0 or 1
};

constexpr int kDtypeCount = 10;

// Bytes of one element.
constexpr std::size_t dtype_bytes(Dtype dtype) {
  constexpr std::size_t kBytes[] = {4, 8, 2, 2, 4, 8, 1, 1, 2, 1};
  return kBytes[static_cast<int>(dtype)];
}

// As LibTorch spells it: "float32", "bfloat16", ...
constexpr std::string_view dtype_name(Dtype dtype) {
  constexpr std::string_view kNames[] = {"float32",
                                         "float64",
                                         "float16",
                                         "bfloat16",
                                         "int32",
                                         "int64",
                                         "uint8",
                                         "int8",
                                         "int16",
                                         "bool"};
  return kNames[static_cast<int>(dtype)];
}

constexpr bool is_half(Dtype dtype) {
  return dtype == Dtype::kFloat16 || dtype == Dtype::kBFloat16;
}

constexpr bool is_float(Dtype dtype) {
  return is_half(dtype) || dtype == Dtype::kFloat32 || dtype == Dtype::kFloat64;
}

// 16-bit floats, which C++20 has no types for: bit patterns that kernels interpret.
struct Half {
  std::uint16_t bits;
};
struct BFloat16 {
  std::uint16_t bits;
};

template <Dtype kDtype>
struct DtypeIs {
  static constexpr Dtype kValue = kDtype;
};
template <class T>
struct DtypeOf;
template <>
struct DtypeOf<float> : DtypeIs<Dtype::kFloat32> {};
template <>
struct DtypeOf<double> : DtypeIs<Dtype::kFloat64> {};
template <>
struct DtypeOf<Half> : DtypeIs<Dtype::kFloat16> {};
template <>
struct DtypeOf<BFloat16> : DtypeIs<Dtype::kBFloat16> {};
template <>
struct DtypeOf<std::int32_t> : DtypeIs<Dtype::kInt32> {};
template <>
struct DtypeOf<std::int64_t> : DtypeIs<Dtype::kInt64> {};
template <>
struct DtypeOf<std::uint8_t> : DtypeIs<Dtype::kUint8> {};
template <>
struct DtypeOf<std::int8_t> : DtypeIs<Dtype::kInt8> {};
template <>
struct DtypeOf<std::int16_t> : DtypeIs<Dtype::kInt16> {};
template <>
struct DtypeOf<bool> : DtypeIs<Dtype::kBool> {};

}  // namespace trireme
