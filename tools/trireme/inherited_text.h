#pragma once

#include <string>

namespace trireme::tools {

// Puts a text where this process and the programs it starts can read it: in memory without a name,
// whose file descriptor they inherit. For what is too long for a variable of the environment, of
// which the kernel takes 128 KiB. Returns the path to open it by. Throws Error.
std::string inherited_text(const std::string& text);

}  // namespace trireme::tools
