#pragma once

#include <string>

namespace trireme::tools {

// Writes the whole file, or throws ConfigError with its name and the system's reason.
void write_output(const std::string& path, const std::string& content);

}  // namespace trireme::tools
