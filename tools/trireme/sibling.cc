#include "sibling.h"

#include <cerrno>
#include <filesystem>
#include <utility>

#include <unistd.h>

#include "trireme/core/error.h"
#include "trireme/core/version.h"

namespace trireme::tools {
namespace {

[[noreturn]] void refuse(const std::string& path, int error) {
  throw ConfigError(
      detail::concat("the program {} could not be started: {}; it is built if LibTorch is "
                     "available (TRIREME_WITH_TORCH)",
                     {path, detail::errno_text(error)}));
}

[[noreturn]] void become(std::vector<std::string> arguments) {
  std::vector<char*> pointers;
  pointers.reserve(arguments.size() + 1);
  for (std::string& argument : arguments) {
    pointers.push_back(argument.data());
  }
  pointers.push_back(nullptr);
  execv(pointers[0], pointers.data());
  refuse(arguments[0], errno);
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
  arguments.insert(arguments.begin(), sibling_path(name));
  become(std::move(arguments));
}

std::vector<std::string> worker_command(const std::vector<std::string>& words) {
  std::vector<std::string> command = {sibling_path("trireme-worker"),
                                      std::string(kWorkerFor) + TRIREME_VERSION};
  command.insert(command.end(), words.begin(), words.end());
  return command;
}

int run_worker(const std::vector<std::string>& words) {
  become(worker_command(words));
}

}  // namespace trireme::tools
