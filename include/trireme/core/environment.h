#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace trireme {

// The value of an environment variable; nothing when it is unset or empty.
std::optional<std::string> env_string(const char* name);

// The variable as a whole number in [minimum, maximum]; nothing when it is unset or empty.
// Throws ConfigError that names the variable, its value and the range.
std::optional<std::int64_t> env_integer(const char* name,
                                        std::int64_t minimum,
                                        std::int64_t maximum);

// The variable as seconds, fractions allowed, above 0. Throws like env_integer.
std::optional<double> env_seconds(const char* name);

// `text` as a whole number; nothing when it is anything else ("7x", "", " 7", out of range).
std::optional<std::int64_t> parse_integer(std::string_view text);

// `text` as a finite number above 0; nothing when it is anything else.
std::optional<double> parse_positive(std::string_view text);

}  // namespace trireme
