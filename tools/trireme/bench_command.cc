#include <memory>

#include "collectives_bench.h"
#include "command_words.h"
#include "commands.h"
#include "faults_bench.h"
#include "machine_options.h"
#include "number_options.h"
#include "sibling.h"
#include "train_bench.h"
#include "trireme/core/error.h"
#include "trireme/core/shell_text.h"

namespace trireme::tools {
namespace {

void add_machines(CLI::App& app, bench::CollectivesOptions& options) {
  add_count(app,
            "--machines",
            options.machines,
            "Measure on a test bed of this many machines (2 or more): network namespaces on this "
            "host; needs root")
      ->check(CLI::Range(2, 200));
  app.add_flag("--rails",
               options.rails,
               "On a test bed of two machines, send 64 MiB over one interface and over two, each "
               "limited to 1 Gbit/s");
  add_machine_options(app, options.launch);
}

void add_collectives(CLI::App& bench, Action& action) {
  auto options = std::make_shared<bench::CollectivesOptions>();
  CLI::App* collectives =
      bench.add_subcommand("collectives",
                           "What ranks tell each other: all_reduce, reduce_scatter, all_gather and "
                           "broadcast, from 4 KiB "
                           "to 64 MiB");
  collectives->footer(
      "On several machines, run one command on each, identical except for --node-rank; machine 0\n"
      "prints the results:\n"
      "  trireme bench collectives --nnodes 2 --node-rank 0 --rendezvous HOST:PORT -n 1\n"
      "On one host, as root, with network namespaces as machines, next to other systems:\n"
      "  trireme bench collectives --machines 2 -n 1 --peers");
  add_count(*collectives,
            "-n,--ranks",
            options->launch.ranks,
            "Ranks on each machine (default: 2, or 1 on several machines)");
  collectives->add_flag("--peers",
                        options->peers,
                        "Also measure Gloo (PyTorch) and Open MPI, taking turns in the same run");
  collectives->add_option("--json", options->json_path, "Also write the table as JSON")
      ->type_name("FILE");
  add_count(*collectives,
            "--rounds",
            options->rounds,
            "Number of rounds in which the systems take turns (default: 3)");
  collectives->add_option("--op", options->ops, "Only these operations")
      ->check(CLI::IsMember({"all_reduce", "reduce_scatter", "all_gather", "broadcast"}))
      ->type_name("NAME...");
  collectives->add_option("--bytes", options->sizes, "Only these sizes: 4KiB 64MiB")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(4LL << 10, 1LL << 30))
      ->type_name("SIZE...");
  add_machines(*collectives, *options);
  collectives->add_option("--worker", options->worker_output, "")
      ->group("");  // for the ranks it starts
  collectives->callback([&action, options] {
    options->command_line = detail::shell_text(command_words());
    action = [options] { return bench::run_collectives_bench(*options); };
  });
}

void add_faults(CLI::App& bench, Action& action) {
  auto options = std::make_shared<bench::FaultsBenchOptions>();
  CLI::App* faults = bench.add_subcommand(
      "faults",
      "How soon an elastic training resumes when its ranks are killed, stopped and added, and "
      "whether its weights are those of an undisturbed one");
  add_count(*faults, "-n,--ranks", options->ranks, "Most ranks that the job has (default: 4)");
  add_count(*faults, "--faults", options->faults, "Number of faults (default: 50)");
  add_count(*faults,
            "--every",
            options->every,
            "Steps between two faults, on average, of which the training has as many as they need "
            "(default: 13; with --points: 10)");
  faults->add_option("--zero", options->zero, "Stage (default: 3)")
      ->check(CLI::Range(0, 3))
      ->type_name("STAGE");
  faults->add_option("--seed", options->seed, "Seed that decides what happens when (default: 1)")
      ->type_name("N");
  faults->add_option("--json", options->json_path, "Also write the table as JSON")
      ->type_name("FILE");
  faults->add_flag(
      "--points",
      options->points,
      "Not at random instants but at marked points: of a step, of keeping its state, of "
      "checkpoints, of taking over (a drill)");
  faults->add_flag(
      "--peers",
      options->peers,
      "Kill ranks of a gpt, and of the same model as PyTorch DDP, which torchrun starts "
      "again from its last checkpoint");
  faults
      ->add_option("--setting", options->setting, "Of --peers: 0: 25M parameters (default); 1: 3M")
      ->check(CLI::Range(0, 1))
      ->type_name("N");
  faults->footer(
      "Other flags are settings of the training: --width 512, see trireme train --help.");
  faults->allow_extras();
  faults->callback([&action, faults, options] {
    options->settings = faults->remaining();
    TRIREME_CHECK(!options->peers || options->settings.empty(),
                  "--peers: expected no settings of a training, since both train the model of "
                  "--setting, found {}",
                  {options->settings.front()});
    TRIREME_CHECK(!options->peers || options->every == 0,
                  "--every: expected none with --peers, where each kill has its own pause, found ",
                  options->every);
    for (const std::string& word : options->settings) {
      TRIREME_CHECK(
          word.substr(0, word.find('=')) != "--steps",
          "--steps: expected --faults and --every instead: the training has as many steps "
          "as they need");
    }
    options->command_line = detail::shell_text(command_words());
    action = [options] { return bench::run_faults_bench(*options); };
  });
}

}  // namespace

void add_bench_command(CLI::App& program, Action& action) {
  CLI::App* bench =
      program.add_subcommand("bench", "Measure performance, side by side with other systems");
  bench->require_subcommand(1);
  bench->footer(
      "trireme bench NAME --help says what each of them measures and what flags it has. All print\n"
      "a table with the machine and the versions it was measured with (--json FILE also writes it\n"
      "as JSON). --peers, where there is one, measures other systems, too, in turns in the same\n"
      "run, with the Python that TRIREME_PYTHON names. For a start:\n"
      "  trireme bench collectives\n"
      "How they measure, and results: docs/benchmarks.md.");

  add_collectives(*bench, action);
  const auto add_program = [&](const char* name, const char* about) {
    CLI::App* command = bench->add_subcommand(name, about);
    command->allow_extras();
    command->set_help_flag();  // its program has one
    command->callback([&action, command, name] {
      action = [command, name] {
        return run_sibling(std::string("trireme-bench-") + name, command->remaining());
      };
    });
  };
  add_program("optim", "The update of each optimizer, next to torch's and to what memory allows");
  add_program("step",
              "A training step of a gpt as one process, DDP and ZeRO-1 to 3, next to PyTorch and "
              "DeepSpeed");
  add_program(
      "compress",
      "Steps with compressed gradients over a slow link, next to PyTorch's hooks; needs root");
  add_program("sync",
              "Loose synchronisation over a slow link and with slow ranks, next to exact training "
              "and to PyTorch's; needs root");
  add_program("gpu", "What a GPU moves, and steps on it next to plain LibTorch and PyTorch");
  add_program("checkpoint", "Saving and loading the state of a training, next to PyTorch");

  add_faults(*bench, action);

  auto train_options = std::make_shared<bench::TrainBenchOptions>();
  CLI::App* train =
      bench->add_subcommand("train", "Complete trainings on Fashion-MNIST, next to PyTorch");
  train->add_flag(
      "--peers", train_options->peers, "Also measure PyTorch, taking turns in the same run");
  add_count(*train,
            "--rounds",
            train_options->rounds,
            "Number of rounds in which they take turns (default: 3)");
  train->add_option("--model", train_options->model, "mlp or convnet (default: both)")
      ->type_name("NAME");
  train
      ->add_option("--epochs",
                   train_options->epochs,
                   "Epochs to train (default: 10 for the mlp, 6 for the convnet)")
      ->check(CLI::PositiveNumber)
      ->type_name("N");
  train->add_option("--json", train_options->json_path, "Also write the table as JSON")
      ->type_name("FILE");
  train->callback([&action, train_options] {
    train_options->command_line = detail::shell_text(command_words());
    action = [train_options] { return bench::run_train_bench(*train_options); };
  });
}

}  // namespace trireme::tools
