#pragma once

#include <string>

#include <CLI/App.hpp>

namespace trireme::tools {

// What is wrong with a command line, in our words: for an unknown flag the flag as it was typed and
// the nearest one there is, for a value what was expected; then whose --help says more. For errors
// that App::parse has thrown.
std::string usage_error_text(const CLI::App& program, const CLI::ParseError& error);

}  // namespace trireme::tools
