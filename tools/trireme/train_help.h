#pragma once

#include <string>

namespace trireme::tools {

// What `trireme train --help` prints.
std::string train_help();

// To standard output. Returns the exit code: that it could not be written is a failure.
int print_text(const std::string& text);

}  // namespace trireme::tools
