#pragma once

#include <cstdint>

#include "trireme/comm/operation.h"

namespace trireme::detail {

// One operation in flight on this rank.
struct Call {
  Operation operation;
  std::uint32_t sequence = 0;  // of collectives, from 1; 0 for send and recv
};

}  // namespace trireme::detail
