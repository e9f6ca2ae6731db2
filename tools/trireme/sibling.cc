#include "sibling.h"

#include <cerrno>
#include <filesystem>

#include <unistd.h>

#include "trireme/core/error.h"

namespace trireme::tools {

int run_sibling(const std::string& name, std::vector<std::string> arguments) {
  const auto path = std::filesystem::read_symlink("/proc/self/exe").parent_path() / name;
  arguments.insert(arguments.begin(), path.string());
  std::vector<char*> pointers;
  pointers.reserve(arguments.size() + 1);
  for (std::string& argument : arguments) {
    pointers.push_back(argument.data());
  }
  pointers.push_back(nullptr);
  execv(path.c_str(), pointers.data());
  throw ConfigError(detail::concat("the program ",
                                   path.string(),
                                   " could not be started: ",
                                   detail::errno_text(errno),
                                   "; it is built where LibTorch is (TRIREME_WITH_TORCH)"));
}

}  // namespace trireme::tools
