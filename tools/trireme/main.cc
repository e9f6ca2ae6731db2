#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <fcntl.h>
#include <unistd.h>

#include "commands.h"
#include "help_formatter.h"
#include "trireme/core/error.h"
#include "trireme/core/log.h"
#include "trireme/core/partial_file.h"
#include "trireme/core/version.h"
#include "trireme/launch/launcher.h"
#include "usage_error.h"

namespace {

// CLI11 has exit codes of its own; ours are fixed: 2 for anything wrong with the command line.
int report_usage(const CLI::App& program, const CLI::ParseError& error) {
  if (error.get_exit_code() == 0) {  // --help, --version
    program.exit(error);
    return trireme::kExitOk;
  }
  std::fprintf(stderr, "trireme: %s\n", trireme::tools::usage_error_text(program, error).c_str());
  return trireme::kExitUsage;
}

int run_program(int argc, char** argv) {
  CLI::App program("Distributed training for LibTorch.", "trireme");
  program.set_version_flag("--version", std::string("trireme ") + TRIREME_VERSION);
  program.require_subcommand(1);
  trireme::tools::use_plain_help(program);
  std::vector<std::string> words(argv + 1, argv + argc);
  if (!words.empty() && words.front() == "help") {  // "help train" is "train --help"
    words.erase(words.begin());
    words.emplace_back("--help");
  }
  const std::vector<std::string> command = trireme::tools::split_off_command(words);
  const std::vector<std::string> worker = trireme::tools::split_off_worker_words(words);
  trireme::tools::Action action;
  trireme::tools::add_run_command(program, action, command);
  trireme::tools::add_scale_command(program, action);
  trireme::tools::add_bench_command(program, action);
  trireme::tools::add_ckpt_command(program, action);
  trireme::tools::add_compare_command(program, action);
  trireme::tools::add_doctor_command(program, action);
  trireme::tools::add_drill_command(program, action);
  trireme::tools::add_plot_command(program, action);
  trireme::tools::add_train_command(program, action);
  trireme::tools::add_worker_commands(program, action, worker);
  trireme::tools::check_values(program, words);
  try {
    std::reverse(words.begin(), words.end());  // CLI11 takes them from the back
    program.parse(words);
  } catch (const CLI::ParseError& error) {
    return report_usage(program, error);
  }
  return action();
}

// A program started with a standard stream closed would get something else in its place.
void open_standard_streams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (fcntl(fd, F_GETFD) < 0) {
      open("/dev/null", O_RDWR);  // takes the lowest free number, which is this one
    }
  }
}

}  // namespace

// What could not be written to standard output is a failure: the reader may be a script. It is said
// beside another failure, too, whose findings are what was lost.
int checked_output(int code) {
  std::cout.flush();
  const bool written = std::cout.good() && std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (written) {
    return code;
  }
  std::fprintf(stderr, "trireme: standard output could not be written\n");
  return code == trireme::kExitOk ? 1 : code;
}

int main(int argc, char** argv) {
  open_standard_streams();
  // At once, so that a TRIREME_LOG_LEVEL that is none does not go unnoticed.
  trireme::log(trireme::LogLevel::kDebug, "trireme " TRIREME_VERSION);
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error with a name
  trireme::remove_partial_files_at_signals();
  try {
    return checked_output(run_program(argc, argv));
  } catch (const trireme::ConfigError& error) {
    std::fprintf(stderr, "trireme: %s\n", error.what());
    return trireme::kExitUsage;
  } catch (const trireme::CheckpointError& error) {
    std::fprintf(stderr, "trireme: %s\n", error.what());
    return 1;
  } catch (const trireme::DataError& error) {  // as wrong to name as a file that is not there
    std::fprintf(stderr, "trireme: %s\n", error.what());
    return trireme::kExitUsage;
  } catch (const trireme::StoreDoesNotAnswer& error) {
    std::fprintf(stderr, "trireme: %s\n", error.what());
    return trireme::kExitRendezvousTimedOut;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "trireme: %s\n", error.what());
    return 1;
  }
}
