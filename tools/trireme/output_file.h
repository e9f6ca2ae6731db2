#pragma once

#include <string>

namespace trireme::tools {

// What a path of "-" stands for, wherever text is written.
inline bool is_standard_output(const std::string& path) {
  return path == "-";
}

// Writes the whole file, or throws ConfigError with its name and the system's reason.
void write_output(const std::string& path, const std::string& content);

// Throws ConfigError where no file can be made at this path, before much is done in vain.
void check_output(const std::string& path);

}  // namespace trireme::tools
