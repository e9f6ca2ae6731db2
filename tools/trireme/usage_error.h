#pragma once

#include <string>
#include <vector>

#include <CLI/App.hpp>

namespace trireme::tools {

// What is wrong with a command line, in our words: for an unknown flag the flag as it was typed and
// the nearest one there is, for a value what was expected; then whose --help says more. For errors
// that App::parse has thrown.
std::string usage_error_text(const CLI::App& program, const CLI::ParseError& error);

// CLI11 gives an option that was left without its value the next word, also where that is an option
// (`--data --batch 4`, `--data= --batch 4`). Throws ConfigError there, since a value that begins
// with dashes is attached, and where a value is empty, or a switch is given one.
void check_values(const CLI::App& program, const std::vector<std::string>& words);

}  // namespace trireme::tools
