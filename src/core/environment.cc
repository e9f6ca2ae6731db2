#include "trireme/core/environment.h"

#include <charconv>
#include <cmath>
#include <cstdlib>

#include "trireme/core/error.h"

namespace trireme {

std::optional<std::string> env_string(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') {
    return std::nullopt;
  }
  return std::string(value);
}

std::optional<std::int64_t> parse_integer(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    return std::nullopt;
  }
  return value;
}

std::optional<double> parse_positive(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value) ||
      value <= 0) {
    return std::nullopt;
  }
  return value;
}

std::optional<std::int64_t> env_integer(const char* name,
                                        std::int64_t minimum,
                                        std::int64_t maximum) {
  const auto text = env_string(name);
  if (!text) {
    return std::nullopt;
  }
  const auto value = parse_integer(*text);
  TRIREME_CHECK(value && *value >= minimum && *value <= maximum,
                "the environment variable {} must be a whole number from {} to {}, found \"{}\": "
                "correct it or unset it",
                {name, minimum, maximum, *text});
  return value;
}

std::optional<double> env_seconds(const char* name) {
  const auto text = env_string(name);
  if (!text) {
    return std::nullopt;
  }
  const auto value = parse_positive(*text);
  TRIREME_CHECK(value,
                "the environment variable {} must be a number of seconds above 0, found \"{}\": "
                "correct it or unset it",
                {name, *text});
  return value;
}

}  // namespace trireme
