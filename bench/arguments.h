#pragma once

#include <functional>
#include <optional>
#include <string>

#include <CLI/App.hpp>

// The command line of a benchmark that is a program of its own, taken as trireme takes its own.

namespace trireme::bench {

std::string command_line(int argc, char** argv);

// Reads the words into the options of `program`. Says what is wrong with them, or helps; then the
// exit code. Nothing: go on.
std::optional<int> take_arguments(CLI::App& program, int argc, char** argv);

// What `main` returns: of `benchmark`, or for what it throws, which is said.
int exit_code_of(const std::function<int()>& benchmark);

}  // namespace trireme::bench
