#pragma once

#include <cstddef>
#include <cstring>

namespace trireme::detail {

// memmove that takes nothing and the same place as well.
inline void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (to != from && bytes > 0) {
    std::memmove(to, from, bytes);
  }
}

}  // namespace trireme::detail
