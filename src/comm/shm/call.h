#pragma once

#include <cstdint>

#include "trireme/comm/operation.h"

namespace trireme::detail {

// One operation in flight on this rank.
struct Call {
  Operation operation;
  std::uint64_t number = 0;    // of collectives, from 1; 0 for send and recv
  std::uint32_t sequence = 0;  // of collectives, in the control memory: it wraps around
};

}  // namespace trireme::detail
