#pragma once

#include <string>

namespace trireme {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

// Writes one line to standard error in one write, so that lines of several ranks never mix:
// "trireme: warning: rank 1: ...". Lines below TRIREME_LOG_LEVEL (debug, info, warning, error,
// off; default warning) are dropped. Thread-safe, never throws.
void log(LogLevel level, const std::string& message) noexcept;

}  // namespace trireme
