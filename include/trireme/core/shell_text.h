#pragma once

#include <string>
#include <vector>

namespace trireme::detail {

// Words as they are typed into a shell: "--prompt 'a b'".
std::string shell_text(const std::vector<std::string>& words);

}  // namespace trireme::detail
