#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace trireme::detail {

// XXH3 with 64 bits and seed 0, as the library xxHash computes it on any machine.
std::uint64_t checksum_of(const void* data, std::size_t bytes);

// 16 hexadecimal digits, and back.
std::string checksum_text(std::uint64_t checksum);
std::optional<std::uint64_t> parse_checksum(std::string_view text);

}  // namespace trireme::detail
