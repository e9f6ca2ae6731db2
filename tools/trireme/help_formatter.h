#pragma once

#include <CLI/App.hpp>

namespace trireme::tools {

// Has --help of this program and of the commands that are added later show an argument once, where
// it may also be given by a flag, and not its name as its type, too ("OUT OUT REQUIRED").
void use_plain_help(CLI::App& program);

}  // namespace trireme::tools
