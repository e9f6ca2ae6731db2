#pragma once

#include <string>
#include <vector>

namespace trireme::tools {

// The program `name` that is installed beside this one; subcommands that need LibTorch are programs
// of their own. Throws ConfigError where it is not there.
std::string sibling_path(const std::string& name);

// Becomes that program. Does not return, unless it throws like sibling_path.
int run_sibling(const std::string& name, std::vector<std::string> arguments);

// trireme-worker with these words, as a command. It is told whose it is, and refuses to work for a
// trireme of another version: they agree on words that nobody else reads.
inline constexpr const char* kWorkerFor = "--for=";
std::vector<std::string> worker_command(const std::vector<std::string>& words);
// Becomes it, like run_sibling.
int run_worker(const std::vector<std::string>& words);

}  // namespace trireme::tools
