#pragma once

#include <optional>
#include <string>
#include <vector>

#include <CLI/App.hpp>

namespace trireme::worker {

// Reads a command's words into its options. The exit code where that is all there is to do: help
// was asked for, or they are wrong, which is said.
std::optional<int> exit_after(CLI::App& app, std::vector<std::string> words);

}  // namespace trireme::worker
