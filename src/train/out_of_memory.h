#pragma once

#include <exception>
#include <new>
#include <string_view>

#include "trireme/core/error.h"

namespace trireme::detail {

// Memory has run out: our limit, LibTorch's allocator, or the library's.
inline bool is_out_of_memory(const std::exception& error) {
  return dynamic_cast<const MemoryError*>(&error) != nullptr ||
         dynamic_cast<const std::bad_alloc*>(&error) != nullptr ||
         std::string_view(error.what()).find("can't allocate memory") != std::string_view::npos;
}

}  // namespace trireme::detail
