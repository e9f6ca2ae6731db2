#include "arguments.h"

#include <algorithm>
#include <cstdio>

#include <CLI/Error.hpp>

#include "help_formatter.h"
#include "trireme/launch/launcher.h"
#include "usage_error.h"

namespace trireme::worker {

std::optional<int> exit_after(CLI::App& app, std::vector<std::string> words) {
  tools::use_plain_help(app);
  tools::check_values(app, words);
  std::reverse(words.begin(), words.end());  // CLI11 takes them from the back
  try {
    app.parse(words);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {
      app.exit(error);
      return kExitOk;
    }
    std::fprintf(stderr, "trireme: %s\n", tools::usage_error_text(app, error).c_str());
    return kExitUsage;
  }
  return std::nullopt;
}

}  // namespace trireme::worker
