#pragma once

#include <cstdint>

#include "trireme/core/error.h"

namespace trireme {

// Throws ConfigError where a placement of parameters is given for a stage that divides none.
// `name`: what the caller calls it.
inline void check_placement(const char* name, bool given, std::int64_t zero) {
  TRIREME_CHECK(!given || zero == 3, name, ": it applies to stage 3 only, found zero = ", zero);
}

}  // namespace trireme
