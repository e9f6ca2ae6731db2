#include "arguments.h"

#include <cstdio>

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "json_file.h"
#include "trireme/core/error.h"
#include "usage_error.h"

namespace trireme::bench {

std::string command_line(int argc, char** argv) {
  std::string line;
  for (int i = 0; i < argc; ++i) {
    line += (i > 0 ? " " : "") + std::string(argv[i]);
  }
  return line;
}

std::optional<int> take_arguments(CLI::App& program, int argc, char** argv) {
  try {
    tools::check_values(program, {argv + 1, argv + argc});
    program.parse(argc, argv);
    const CLI::Option* json = program.get_option_no_throw("--json");
    if (json != nullptr && json->count() > 0) {
      refuse_standard_output(json->results().back());
    }
  } catch (const ConfigError& error) {
    std::fprintf(stderr, "trireme: %s\n", error.what());
    return 2;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {
      return program.exit(error);  // --help
    }
    std::fprintf(stderr, "trireme: %s\n", tools::usage_error_text(program, error).c_str());
    return 2;
  }
  return std::nullopt;
}

int exit_code_of(const std::function<int()>& benchmark) {
  try {
    return benchmark();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "trireme: %s\n", error.what());
    return dynamic_cast<const ConfigError*>(&error) != nullptr ? 2 : 1;
  }
}

}  // namespace trireme::bench
