#pragma once

#include <exception>
#include <new>
#include <string_view>

#include <c10/util/Exception.h>

#include "trireme/core/error.h"
#include "trireme/tensor/memory_limit.h"

namespace trireme::detail {

// Memory has run out: our limit, LibTorch's allocator (which has two ways to say so: malloc's, and
// mimalloc's in its arm64 builds), or the library's.
inline bool is_out_of_memory(const std::exception& error) {
  const std::string_view text = error.what();
  return dynamic_cast<const MemoryError*>(&error) != nullptr ||
         dynamic_cast<const std::bad_alloc*>(&error) != nullptr ||
         dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||  // of a GPU
         text.find("DefaultCPUAllocator: can't allocate memory") != std::string_view::npos ||
         text.find("DefaultCPUAllocator: not enough memory") != std::string_view::npos;
}

// The same of an error that came out of operators, which may have made another one of it. What the
// limit has noted is forgotten.
inline bool ran_out_of_memory(const std::exception& error) {
  const bool noted = MemoryLimit::forget();
  return noted || is_out_of_memory(error);
}

}  // namespace trireme::detail
