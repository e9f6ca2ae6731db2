#pragma once

#include <string>

namespace trireme::tools {

// What `trireme train --help` prints.
std::string train_help();

}  // namespace trireme::tools
