#pragma once

#include <string>
#include <vector>

namespace trireme::tools {

// Becomes the program `name` that is installed beside this one; subcommands that need LibTorch are
// programs of their own. Throws ConfigError where it is not there; does not return otherwise.
int run_sibling(const std::string& name, std::vector<std::string> arguments);

}  // namespace trireme::tools
