#pragma once

#include <optional>
#include <string>

#include <CLI/App.hpp>

// Options that take numbers, with one wording for what is wrong with them.

namespace trireme::tools {

// A whole number from 1 on; `value` is an int, or an optional one.
template <class Count>
CLI::Option* add_count(CLI::App& app,
                       const std::string& name,
                       Count& value,
                       const std::string& help);
// Seconds above 0, fractions allowed.
CLI::Option* add_optional_seconds(CLI::App& app,
                                  const std::string& name,
                                  std::optional<double>& value,
                                  const std::string& help);

}  // namespace trireme::tools
