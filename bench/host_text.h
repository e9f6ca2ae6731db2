#pragma once

#include <string>

namespace trireme::bench {

// This host's kernel, the processors it lets us use and their model, and the command, as lines for
// the head of a table.
std::string host_text(const std::string& command_line);

}  // namespace trireme::bench
