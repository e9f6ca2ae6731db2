#include <algorithm>
#include <memory>

#include "commands.h"
#include "number_options.h"
#include "trireme/core/environment.h"
#include "trireme/core/error.h"
#include "trireme/launch/launcher.h"

namespace trireme::tools {
namespace {

constexpr std::int64_t kLargestNodeRank = 1 << 20;

}  // namespace

std::vector<std::string> split_off_command(std::vector<std::string>& words) {
  std::vector<std::string> command;
  if (words.empty() || words.front() != "run") {
    return command;
  }
  // The program begins after "--", or at the first word that is neither an option nor its value.
  std::size_t at = 1;
  while (at < words.size() && words[at].starts_with("-") && words[at] != "--") {
    const bool has_value = words[at] != "--no-bind" && words[at] != "-h" && words[at] != "--help" &&
                           words[at].find('=') == std::string::npos &&
                           !(words[at].size() > 2 && words[at][1] != '-');
    at += has_value ? 2 : 1;
  }
  at = std::min(at, words.size());
  const std::size_t first = at < words.size() && words[at] == "--" ? at + 1 : at;
  command.assign(words.begin() + static_cast<std::ptrdiff_t>(first), words.end());
  words.resize(at);
  return command;
}

void add_run_command(CLI::App& program, Action& action, const std::vector<std::string>& command) {
  auto options = std::make_shared<LaunchOptions>();
  options->ranks = 0;  // not said
  CLI::App* run =
      program.add_subcommand("run",
                             "Start a program as several ranks, on this machine or on "
                             "several: trireme run -n N [OPTIONS] -- PROGRAM [ARGS...]");
  run->footer(
      "Each line of output is printed with its rank in front. When a rank fails, the others are "
      "ended.\n"
      "On several machines, one command on each, the same but for --node-rank:\n"
      "  trireme run --nnodes 2 --node-rank 0 --rendezvous HOST:PORT -n 4 -- PROGRAM\n"
      "Exit codes: 0 all ranks succeeded, 2 wrong usage, 3 a rank failed, 4 the ranks did not find "
      "each\n"
      "other in time, 128 + N ended by signal N.");
  add_count(
      *run, "-n,--ranks", options->ranks, "How many ranks to start on this machine (required)");
  add_optional_count(*run,
                     "--threads",
                     options->threads,
                     "Threads of each rank (default: its share of the processors)");
  run->add_option("--log-dir", options->log_dir, "Folder for the ranks' logs and flight records")
      ->type_name("FOLDER");
  add_count(*run, "--nnodes", options->nodes, "How many machines the job runs on (default: 1)");
  run->add_option_function<std::string>(
         "--node-rank",
         [options](const std::string& text) {
           const auto number = parse_integer(text);
           if (!number || *number < 0 || *number > kLargestNodeRank) {
             throw CLI::ValidationError(
                 "--node-rank", "expected a whole number from 0 on, found \"" + text + "\"");
           }
           options->node_rank = static_cast<int>(*number);
         },
         "Which of them this is, from 0 on")
      ->type_name("K");
  run->add_option("--rendezvous",
                  options->rendezvous,
                  "Where machine 0 listens for the others: an address of it and a free port")
      ->type_name("HOST:PORT");
  run->add_option("--token-file",
                  options->token_file,
                  "A file with the secret that all machines share; only you may read it (default: "
                  "the variable TRIREME_TOKEN)")
      ->type_name("FILE");
  run->add_option("--interfaces",
                  options->interfaces,
                  "Network interfaces for the ranks (default: all that reach machine 0)")
      ->type_name("A,B");
  run->add_option("--backend", options->backend, "How ranks talk: auto, shm, ucx or mpi")
      ->type_name("NAME");
  run->add_option("--algorithm", options->algorithm, "Algorithm of the collectives")
      ->type_name("NAME");
  add_optional_count(
      *run, "--sum-group", options->sum_group, "Ranks whose numbers are added first, as a group");
  add_optional_seconds(*run,
                       "--timeout",
                       options->timeout_seconds,
                       "Seconds after which any wait in the job gives up (default: 300)");
  run->add_flag("!--no-bind", options->bind, "Do not give each rank processors of its own");
  run->callback([&action, options, &command] {
    options->command = command;
    TRIREME_CHECK(options->ranks > 0, "run: expected -n N, the number of ranks, found none");
    TRIREME_CHECK(
        !options->command.empty(),
        "run: expected a program to run, found none: trireme run -n N -- PROGRAM [ARGS...]");
    action = [options] { return launch(*options); };
  });
}

}  // namespace trireme::tools
