#pragma once

#include <string>

namespace trireme::detail {

// The number that names this executable's build: the linker's build ID; empty where it has none.
std::string executable_build_id();

}  // namespace trireme::detail
