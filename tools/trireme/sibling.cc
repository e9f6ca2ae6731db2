#include "sibling.h"

#include <cerrno>
#include <filesystem>

#include <unistd.h>

#include "trireme/core/error.h"

namespace trireme::tools {
namespace {

[[noreturn]] void refuse(const std::string& path, int error) {
  throw ConfigError(
      detail::concat("the program {} could not be started: {}; it is built if LibTorch is "
                     "available (TRIREME_WITH_TORCH)",
                     {path, detail::errno_text(error)}));
}

}  // namespace

std::string sibling_path(const std::string& name) {
  const auto path = std::filesystem::read_symlink("/proc/self/exe").parent_path() / name;
  if (access(path.c_str(), X_OK) != 0) {
    refuse(path.string(), errno);
  }
  return path.string();
}

int run_sibling(const std::string& name, std::vector<std::string> arguments) {
  const std::string path = sibling_path(name);
  arguments.insert(arguments.begin(), path);
  std::vector<char*> pointers;
  pointers.reserve(arguments.size() + 1);
  for (std::string& argument : arguments) {
    pointers.push_back(argument.data());
  }
  pointers.push_back(nullptr);
  execv(path.c_str(), pointers.data());
  refuse(path, errno);
}

}  // namespace trireme::tools
