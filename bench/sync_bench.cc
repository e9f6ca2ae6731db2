// trireme bench sync: loose synchronisation beside exact training, over a slow link and with slow
// ranks, each beside what arithmetic allows.

#include "sync_bench.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <optional>

#include <CLI/CLI.hpp>

#include <torch/version.h>

#include "arguments.h"
#include "host_text.h"
#include "json_file.h"
#include "same_terms.h"
#include "scratch_folder.h"
#include "sync_rank.h"
#include "test_bed.h"
#include "trireme/core/error.h"
#include "trireme/core/version.h"

namespace trireme::bench {
namespace {

struct NamedExperiment {
  const char* name;
  SyncExperiment measure;
  bool on_machines;
};
constexpr std::array kExperiments = {NamedExperiment{"link", measure_link, true},
                                     NamedExperiment{"loss", measure_loss, true},
                                     NamedExperiment{"slow-rank", measure_slow_rank, false},
                                     NamedExperiment{"stalls", measure_stalls, false}};

void add_options(CLI::App& app, SyncOptions& options) {
  app.add_option("--rounds", options.rounds, "Rounds in which the systems take turns (default: 1)")
      ->check(CLI::Range(1, 100));
  app.add_option("--steps",
                 options.steps,
                 "Steps over the link that are timed in a round; of modes that average, half as "
                 "many averages with the steps between them (default: 4)")
      ->check(CLI::Range(1, 1000));
  app.add_option("--megabits", options.megabits, "What the link carries in a second (default: 100)")
      ->check(CLI::Range(1, 100'000));
  app.add_option("--sync-every", options.every, "Steps between averages (default: 16)")
      ->check(CLI::Range(2, 10'000));
  app.add_option("--staleness",
                 options.staleness,
                 "Steps that a rank may be ahead of the slowest one (default: 3)")
      ->check(CLI::Range(0, 1000));
  app.add_option("--seeds", options.seeds, "Trainings of each kind, to compare losses (default: 3)")
      ->check(CLI::Range(1, 100));
  app.add_option("--loss-steps",
                 options.loss_steps,
                 "Steps of those trainings, a multiple of --sync-every (default: 20 times that)")
      ->check(CLI::Range(2, 1'000'000));
  app.add_option("--paced-steps",
                 options.paced_steps,
                 "Steps with a slow rank, and with stalls (default: 60)")
      ->check(CLI::Range(4, 100'000));
  app.add_option(
         "--pace",
         options.pace_ms,
         "Milliseconds that a micro-batch takes there where nothing slows it (default: 100)")
      ->check(CLI::Range(1.0, 10'000.0));
  std::vector<std::string> names;
  for (const NamedExperiment& experiment : kExperiments) {
    names.emplace_back(experiment.name);
  }
  app.add_option("--only",
                 options.only,
                 "One experiment only: link, loss, slow-rank or stalls; the last two need no root")
      ->check(CLI::IsMember(names));
  app.add_flag(
      "--smoke",
      options.smoke,
      "Small models and few steps, where no other flag says how many: to see that it works");
  app.add_flag(
      "--peers",
      options.peers,
      "Also measure PyTorch's DDP and its PostLocalSGD over the link, in turns in the same "
      "run");
  app.add_option("--json", options.json_path, "Also write the tables as JSON")->type_name("FILE");
}

// What is not given depends on what is.
void complete(const CLI::App& app, SyncOptions& options) {
  const auto least = [&](const char* flag, int& value, int small) {
    if (options.smoke && app.count(flag) == 0) {
      value = small;
    }
  };
  least("--steps", options.steps, 2);
  least("--sync-every", options.every, 4);
  least("--seeds", options.seeds, 2);
  least("--paced-steps", options.paced_steps, 20);
  if (options.smoke && app.count("--pace") == 0) {
    options.pace_ms = 20;
  }
  if (app.count("--loss-steps") == 0) {
    options.loss_steps = (options.smoke ? 2 : 20) * options.every;
  }
  // Evaluated between two averages, the mean of the replicas would be one more exchange.
  TRIREME_CHECK(options.loss_steps % options.every == 0,
                "--loss-steps: expected a multiple of --sync-every (",
                options.every,
                "), found ",
                options.loss_steps);
  TRIREME_CHECK(!options.peers || options.only.empty() || options.only == "link",
                "--peers: they are measured in the experiment link only, found --only ",
                options.only);
}

int run_sync_bench(const SyncOptions& options) {
  JsonFile file(options.json_path);
  set_same_terms();
  std::vector<NamedExperiment> chosen;
  for (const NamedExperiment& experiment : kExperiments) {
    if (options.only.empty() || options.only == experiment.name) {
      chosen.push_back(experiment);
    }
  }
  std::optional<TestBed> bed;
  if (std::ranges::any_of(chosen, &NamedExperiment::on_machines)) {
    bed.emplace(2).rate(std::to_string(options.megabits) + "mbit");
  }
  const ScratchFolder scratch;
  const SyncPlace place{options, bed ? &*bed : nullptr, scratch};
  std::string text;
  nlohmann::json json = nlohmann::json::object();
  for (const NamedExperiment& experiment : chosen) {
    SyncFindings findings;
    if (const int code = experiment.measure(place, findings); code != 0) {
      return code;
    }
    text += "\n" + findings.text;
    json[experiment.name] = findings.json;
  }
  std::printf("Trireme %s, LibTorch %s\n%s%s%s",
              TRIREME_VERSION,
              TORCH_VERSION,
              host_text(options.command_line).c_str(),
              same_terms_text().c_str(),
              text.c_str());
  file.write(json.dump(1));
  return 0;
}

}  // namespace
}  // namespace trireme::bench

int main(int argc, char** argv) {
  using namespace trireme;
  CLI::App app(
      "Measure loose synchronisation over a slow link and with slow ranks, each beside exact "
      "training and what arithmetic allows; needs root",
      "trireme bench sync");
  bench::SyncOptions options;
  bench::SyncTask task;
  bench::add_options(app, options);
  task.add_to(app);
  bool worker = false;
  std::string output;
  app.add_flag("--worker", worker)->group("");
  app.add_option("--output", output)->group("");
  options.command_line = bench::command_line(argc, argv);
  if (const auto code = bench::take_arguments(app, argc, argv)) {
    return *code;
  }
  return bench::exit_code_of([&] {
    if (worker) {
      return bench::run_sync_rank(task, output);
    }
    bench::complete(app, options);
    return bench::run_sync_bench(options);
  });
}
