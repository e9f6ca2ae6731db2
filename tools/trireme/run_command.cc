#include <algorithm>
#include <memory>

#include "commands.h"
#include "drill_options.h"
#include "machine_options.h"
#include "number_options.h"
#include "supervise.h"
#include "trireme/core/error.h"
#include "trireme/launch/launcher.h"

namespace trireme::tools {
namespace {

// What follows "--" is no option, so CLI11 does not know of it.
class RunFormatter final : public CLI::Formatter {
 public:
  std::string make_usage(const CLI::App* /*app*/, std::string /*name*/) const override {
    return "Usage: trireme run -n N [OPTIONS] -- PROGRAM [ARGS...]\n";
  }
};

}  // namespace

std::vector<std::string> split_off_command(std::vector<std::string>& words) {
  std::vector<std::string> command;
  if (words.empty() || words.front() != "run") {
    return command;
  }
  // The program begins after "--", or at the first word that is neither an option nor its value.
  std::size_t at = 1;
  while (at < words.size() && words[at].starts_with('-') && words[at] != "--") {
    const bool has_value =
        words[at] != "--no-bind" && words[at] != "--encrypt" && words[at] != "--checksums" &&
        words[at] != "--allow-changes" && words[at] != "-h" && words[at] != "--help" &&
        words[at].find('=') == std::string::npos && !(words[at].size() > 2 && words[at][1] != '-');
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
  auto elastic = std::make_shared<ElasticFlags>();
  auto drill = std::make_shared<DrillFlags>();
  auto supervised = std::make_shared<SuperviseFlag>();
  options->ranks = 0;  // not said
  CLI::App* run = program.add_subcommand("run",
                                         "Start a program as several ranks, on one machine or "
                                         "more: trireme run -n N [OPTIONS] -- PROGRAM [ARGS...]");
  run->formatter(std::make_shared<RunFormatter>());
  run->footer(
      "Each line of output is prefixed with its rank. When a rank fails, the others are ended,\n"
      "unless the job is elastic (--elastic, --restart: docs/elastic.md).\n"
      "On several machines, run one command on each, identical except for --node-rank:\n"
      "  trireme run --nnodes 2 --node-rank 0 --rendezvous HOST:PORT -n 4 -- PROGRAM\n"
      "Exit codes: 0 all ranks succeeded, 2 wrong usage, 3 a rank failed, 4 the ranks did not "
      "find\n"
      "each other in time, 128 + N ended by signal N.");
  add_count(*run,
            "-n,--ranks",
            options->ranks,
            "Number of ranks to start on this machine (required, unless --elastic says it)");
  add_count(*run,
            "--threads",
            options->threads,
            "Threads per rank (default: its share of the processors)");
  run->add_option("--log-dir", options->log_dir, "Folder for the ranks' logs and flight records")
      ->type_name("FOLDER");
  add_machine_options(*run, *options);
  run->get_option("--backend")->description("How ranks communicate: auto, shm or ucx");
  add_store_options(*run, *options);
  add_elastic_options(*run, *elastic);
  add_drill_options(*run, *drill);
  add_supervise_option(*run, *supervised);
  auto allow_changes = std::make_shared<bool>(false);
  run->add_flag(
      "--allow-changes",
      *allow_changes,
      "With --elastic MIN:MAX: allow engines whose result depends on the number of ranks");
  add_optional_seconds(*run,
                       "--timeout",
                       options->timeout_seconds,
                       "Seconds after which any wait in the job gives up (default: 300)");
  run->add_flag_callback(
      "--no-bind",
      [options] { options->bind = false; },
      "Do not bind each rank to its own processors");
  run->callback([&action, options, elastic, drill, supervised, allow_changes, &command] {
    options->command = command;
    check_own_ranks(*options);
    apply(*elastic, *options);
    TRIREME_CHECK(!*allow_changes || options->elastic,
                  "--allow-changes: expected --elastic MIN:MAX, found none");
    if (options->elastic) {
      options->elastic->allow_changes = *allow_changes;
    }
    apply(*drill, options->log_dir, *options);
    TRIREME_CHECK(options->ranks > 0,
                  "-n: expected the number of ranks, found none: trireme run -n N -- PROGRAM");
    TRIREME_CHECK(!options->command.empty(),
                  "expected a program to run, found none: trireme run -n N -- PROGRAM [ARGS...]");
    action = [options, supervised] {
      return supervised->restarts > 0 ? supervise(*supervised, *options) : launch(*options);
    };
  });
}

}  // namespace trireme::tools
