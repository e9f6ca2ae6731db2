#pragma once

#include <cstddef>
#include <cstdint>

#include "trireme/core/dtype.h"

// What writer and reader of safetensors files share: 8 bytes with the header's length
// (little-endian), the header (JSON), the tensors' bytes.

namespace trireme::detail {

inline constexpr std::size_t kLengthBytes = 8;
// The reference implementation refuses larger headers.
inline constexpr std::uint64_t kLongestHeader = 100'000'000;
// The one name in a header that is no tensor's.
inline constexpr const char* kMetadata = "__metadata__";
inline constexpr std::size_t kAlignment =
    8;  // of the first tensor; the header is padded with spaces

// More elements than any memory has; their bytes are still a number of 64 bits.
inline constexpr std::uint64_t kLargestNumel = std::uint64_t{1} << 60;

struct DtypeName {
  Dtype dtype;
  const char* name;
};
inline constexpr DtypeName kDtypeNames[] = {{Dtype::kFloat32, "F32"},
                                            {Dtype::kFloat64, "F64"},
                                            {Dtype::kFloat16, "F16"},
                                            {Dtype::kBFloat16, "BF16"},
                                            {Dtype::kInt32, "I32"},
                                            {Dtype::kInt64, "I64"},
                                            {Dtype::kUint8, "U8"}};

}  // namespace trireme::detail
