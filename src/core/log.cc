#include "trireme/core/log.h"

#include <array>
#include <string_view>

#include <unistd.h>

#include "trireme/core/environment.h"

namespace trireme {
namespace {

constexpr std::array<std::string_view, 5> kLevelNames = {
    "debug", "info", "warning", "error", "off"};

LogLevel threshold_from_environment() {
  const auto name = env_string("TRIREME_LOG_LEVEL");
  for (std::size_t level = 0; name && level < kLevelNames.size(); ++level) {
    if (*name == kLevelNames[level]) {
      return static_cast<LogLevel>(level);
    }
  }
  if (name) {
    const std::string line =
        "trireme: warning: TRIREME_LOG_LEVEL must be debug, info, warning, error or off, found \"" +
        *name + "\": using warning\n";
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
  }
  return LogLevel::kWarning;
}

}  // namespace

void log(LogLevel level, const std::string& message) noexcept {
  try {
    static const LogLevel threshold = threshold_from_environment();
    if (level < threshold) {
      return;
    }
    std::string line = "trireme: ";
    line += kLevelNames[static_cast<std::size_t>(level)];
    line += ": ";
    line += message;
    line += '\n';
    // A log line that cannot be written has nowhere to complain to.
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
  } catch (...) {  // NOLINT(bugprone-empty-catch): out of memory while logging must not end the run
  }
}

}  // namespace trireme
