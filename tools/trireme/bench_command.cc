#include <memory>

#include "collectives_bench.h"
#include "commands.h"
#include "number_options.h"
#include "sibling.h"
#include "train_bench.h"

namespace trireme::tools {

void add_bench_command(CLI::App& program, Action& action) {
  CLI::App* bench = program.add_subcommand("bench", "Measure, side by side with other systems");
  bench->require_subcommand(1);

  auto options = std::make_shared<bench::CollectivesOptions>();
  CLI::App* collectives = bench->add_subcommand(
      "collectives", "all_reduce, reduce_scatter, all_gather and broadcast from 4 KiB to 64 MiB");
  add_count(*collectives, "-n,--ranks", options->ranks, "How many ranks (default: 2)");
  collectives->add_flag(
      "--peers", options->peers, "Beside Gloo (PyTorch) and Open MPI, in turns in the same run");
  collectives->add_option("--json", options->json_path, "Write the table as JSON too")
      ->type_name("FILE");
  add_count(
      *collectives, "--rounds", options->rounds, "How often the systems take turns (default: 3)");
  collectives->add_option("--worker", options->worker_output, "")
      ->group("");  // for the ranks it starts
  const auto add_program = [&](const char* name, const char* about) {
    CLI::App* command = bench->add_subcommand(name, std::string(about) + ": see its own --help");
    command->allow_extras();
    command->set_help_flag();  // its program has one
    command->callback([&action, command, name] {
      action = [command, name] {
        return run_sibling(std::string("trireme-bench-") + name, command->remaining());
      };
    });
  };
  add_program("optim", "Each optimizer beside torch's and beside the memory's limit");
  add_program("step", "A training step in every mode beside PyTorch and DeepSpeed");
  add_program("checkpoint", "Saving and loading a training's state beside PyTorch");

  auto train_options = std::make_shared<bench::TrainBenchOptions>();
  CLI::App* train =
      bench->add_subcommand("train", "Whole trainings on Fashion-MNIST beside PyTorch");
  train->add_flag("--peers", train_options->peers, "Beside PyTorch, in turns in the same run");
  add_count(*train, "--rounds", train_options->rounds, "How often they take turns (default: 3)");
  train->add_option("--model", train_options->model, "mlp or convnet (default: both)")
      ->type_name("NAME");
  train->add_option("--epochs", train_options->epochs, "Default: 10 for the mlp, 6 for the convnet")
      ->check(CLI::PositiveNumber)
      ->type_name("N");
  train->add_option("--json", train_options->json_path, "Write the table as JSON too")
      ->type_name("FILE");
  train->callback([&action, train_options] {
    action = [train_options] { return bench::run_train_bench(*train_options); };
  });

  collectives->callback([&action, options] {
    action = [options] { return bench::run_collectives_bench(*options); };
  });
}

}  // namespace trireme::tools
