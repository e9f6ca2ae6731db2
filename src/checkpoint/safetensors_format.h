#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/checkpoint/safetensors.h"
#include "trireme/core/dtype.h"

// What writers and readers of safetensors files share: 8 bytes with the header's length
// (little-endian), the header (JSON), the tensors' bytes.

namespace trireme::detail {

inline constexpr std::size_t kLengthBytes = 8;
// The reference implementation refuses larger headers.
inline constexpr std::uint64_t kLongestHeader = 100'000'000;
// The one name in a header that is no tensor's.
inline constexpr const char* kMetadata = "__metadata__";
// Of the first tensor; the header is padded with spaces.
inline constexpr std::size_t kAlignment = 8;

// More elements than any memory has; their bytes are still a number of 64 bits.
inline constexpr std::uint64_t kLargestNumel = std::uint64_t{1} << 60;

// "F32", "BF16", ...
const char* file_name_of(Dtype dtype);
std::optional<Dtype> dtype_called(std::string_view name);

// The length and the header of a file of these tensors, one after another. `path` is for messages.
std::string safetensors_header(const std::string& path,
                               const std::vector<TensorEntry>& entries,
                               const std::map<std::string, std::string>& metadata);

}  // namespace trireme::detail
