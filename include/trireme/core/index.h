#pragma once

#include <cstddef>

namespace trireme::detail {

// The number of a rank or a machine, never negative here, as the place in a container.
constexpr std::size_t index(int number) {
  return static_cast<std::size_t>(number);
}

}  // namespace trireme::detail
