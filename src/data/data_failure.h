#pragma once

#include <cstdint>
#include <string>

#include "trireme/core/error.h"

namespace trireme::detail {

// "FILE: at byte 16: expected ..., found ...". The parts say what was expected, what was found and,
// where that helps, what to do next.
template <class... Parts>
[[noreturn]] void throw_data_error(const std::string& file,
                                   std::int64_t offset,
                                   const Parts&... parts) {
  throw DataError(
      file,
      offset,
      concat(file, offset < 0 ? std::string() : concat(": at byte ", offset), ": ", parts...));
}

}  // namespace trireme::detail
