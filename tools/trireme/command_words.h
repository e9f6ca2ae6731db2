#pragma once

#include <set>
#include <string>
#include <vector>

namespace trireme::tools {

// The words of this process, with its name.
std::vector<std::string> command_words();

// Less these flags, with their values. A word that begins with a dash is no value.
std::vector<std::string> without_flags(const std::vector<std::string>& words,
                                       const std::set<std::string>& flags);

}  // namespace trireme::tools
