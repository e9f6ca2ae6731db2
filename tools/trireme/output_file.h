#pragma once

#include <string>

namespace trireme::tools {

// Writes the whole file, or throws ConfigError with its name and the system's reason.
void write_output(const std::string& path, const std::string& content);

// Throws ConfigError where no file can be made at this path, before much is done in vain.
void check_output(const std::string& path);

}  // namespace trireme::tools
