#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::bench {

// From a fault in a training to the next step that is done.
struct Recovery {
  std::string kind;
  double seconds = 0;
  std::int64_t again = 0;  // steps that were computed again
};

// A table of them: a line for each kind and one for all.
std::string recoveries_text(const std::vector<Recovery>& recoveries);

}  // namespace trireme::bench
