// trireme bench step: a training step of a GPT in every mode, beside PyTorch and DeepSpeed.

#include <CLI/CLI.hpp>

#include "arguments.h"
#include "same_terms.h"
#include "step_machines.h"
#include "step_modes.h"
#include "step_rank.h"

int main(int argc, char** argv) {
  using namespace trireme;
  CLI::App app("Measure a training step of a GPT: one process, DDP, ZeRO-1, 2, 3 mapped and copied",
               "trireme bench step");
  bench::StepOptions options;
  bench::Tuning tuning;
  tuning.add_to(app);
  std::string worker;
  std::string output;
  std::size_t setting = 0;
  app.add_option(
         "-n,--ranks", options.ranks, "Ranks on each machine (default: 2, or 1 with --machines)")
      ->check(CLI::Range(1, 64));
  app.add_option("--rounds",
                 options.rounds,
                 "Number of rounds in which the systems take turns (default: 3)")
      ->check(CLI::Range(1, 100));
  app.add_flag(
      "--peers", options.peers, "Also measure PyTorch and DeepSpeed, taking turns in the same run");
  std::vector<std::string> names;
  for (const bench::Mode& mode : bench::modes()) {
    names.emplace_back(mode.name);
  }
  app.add_option("--only", options.only, "Measure one mode only")->check(CLI::IsMember(names));
  app.add_option(
         "--machines",
         options.machines,
         "Measure on a test bed of this many machines: network namespaces on this host; needs root")
      ->check(CLI::Range(2, 200));
  app.add_flag(
      "--traffic",
      options.traffic,
      "Count the bytes sent between two machines of two ranks each in a step: in groups, and flat");
  app.add_option("--json", options.json_path, "Also write the table as JSON")->type_name("FILE");
  app.add_option("--worker", worker)->group("");
  app.add_option("--setting", setting)->group("");
  app.add_option("--output", output)->group("");
  options.command_line = bench::command_line(argc, argv);
  if (const auto code = bench::take_arguments(app, argc, argv)) {
    return *code;
  }
  if (options.ranks == 0) {
    options.ranks = options.machines > 0 ? 1 : 2;
  }
  return bench::exit_code_of([&] {
    if (!worker.empty()) {
      return bench::run_step_rank(worker, setting, tuning, output);
    }
    bench::set_same_terms();
    return options.traffic        ? bench::run_step_traffic(options, tuning)
           : options.machines > 0 ? bench::run_step_machines(options, tuning)
                                  : bench::run_step_modes(options, tuning);
  });
}
