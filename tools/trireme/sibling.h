#pragma once

#include <string>
#include <vector>

namespace trireme::tools {

// The program `name` that is installed beside this one; subcommands that need LibTorch are programs
// of their own. Throws ConfigError where it is not there.
std::string sibling_path(const std::string& name);

// Becomes that program. Does not return, unless it throws like sibling_path.
int run_sibling(const std::string& name, std::vector<std::string> arguments);

}  // namespace trireme::tools
