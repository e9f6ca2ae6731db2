#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <set>

#include "commands.h"
#include "drill_options.h"
#include "inherited_text.h"
#include "machine_options.h"
#include "sibling.h"
#include "supervise.h"
#include "train_checks.h"
#include "train_device.h"
#include "train_help.h"
#include "train_resume.h"
#include "trireme/checkpoint/checkpoint_folder.h"
#include "trireme/comm/launch_protocol.h"
#include "trireme/core/environment.h"
#include "trireme/core/error.h"
#include "trireme/launch/launcher.h"
#include "trireme/settings/model_kinds.h"
#include "trireme/settings/run_folder.h"
#include "trireme/settings/settings_table.h"
#include "trireme/settings/unused.h"

namespace trireme::tools {
namespace {

namespace fs = std::filesystem;
using detail::concat;

// Of a rank, before it has a model or data: LibTorch's own.
constexpr std::uint64_t kLeastRankBytes = std::uint64_t{64} << 20;

// After Ctrl-C: for the step at hand, and for writing the weights.
constexpr double kTimeToEnd = 60;

struct TrainCommand {
  LaunchOptions machines;  // where it runs: how many machines, and how they meet
  ElasticFlags elastic;
  DrillFlags drill;
  SuperviseFlag supervised;
  std::string config;
  ResumeFlag resume;
  bool help = false;
  bool print_config = false;
  bool page = false;
  // Flags in the order given, applied after the file.
  std::vector<std::pair<const Setting*, std::string>> flags;

  std::set<std::string> typed() const {
    std::set<std::string> names;
    for (const auto& [setting, value] : flags) {
      names.insert(setting->name);
    }
    return names;
  }
};

std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const bool folder = fs::is_directory(path);
  TRIREME_CHECK(file.is_open() && !folder,
                "--config: expected a JSON file, found \"{}\": {}",
                {path, folder ? "it is a folder" : detail::errno_text(errno)});
  return {std::istreambuf_iterator<char>(file), {}};
}

// Whoever has typed a flag is told of the flag, not of the setting.
template <class Action>
void naming_flags(const TrainCommand& command, const Action& action) {
  try {
    action();
  } catch (const ConfigError& error) {
    throw ConfigError(with_flags(error.what(), command.typed()));
  }
}

// What is given, over these.
TrainSettings given_over(TrainSettings settings, const TrainCommand& command) {
  if (const auto seconds = env_seconds(kEnvTimeout)) {
    constexpr double kLeast = 1;  // as the setting's bounds
    constexpr double kMost = 1e9;
    settings.timeout = std::clamp(*seconds, kLeast, kMost);
  }
  if (!command.config.empty()) {
    apply_json(settings, text_of(command.config), command.config, command.typed());
  }
  if (command.typed().contains("size")) {
    leave_out_size(settings);
  }
  for (const auto& [setting, value] : command.flags) {
    naming_flags(command,
                 [&, &setting = setting, &value = value] { setting->set_text(settings, value); });
  }
  fill_in(settings, {.model = "gpt"}, &TrainSettings::model);
  return settings;
}

// What is given, over what the run had before.
TrainSettings continued(const std::string& run,
                        std::int64_t step,
                        const TrainSettings& given,
                        const TrainCommand& command) {
  const TrainSettings before = settings_of_run(run, step, command.resume.names_step());
  TrainSettings settings = given_over(before, command);
  check_goes_on(run, step, before, settings);
  if (settings.zero != 3 && given.placement == Placement::kAutomatic) {
    settings.placement = Placement::kAutomatic;  // it was for another stage
  }
  return settings;
}

// The folder that is named; empty: none.
std::string named_run(const TrainCommand& command, const TrainSettings& given) {
  const auto resumed = command.resume.run();
  std::error_code error;
  TRIREME_CHECK(!resumed || given.run.empty() || given.run == *resumed ||
                    fs::equivalent(given.run, *resumed, error),
                "--resume: expected the folder of --run, \"{}\", or a step, found \"{}\"",
                {given.run, resumed.value_or("")});
  return resumed.value_or(given.run);
}

// How many ranks several machines have together is known when they have met: only then the ranks
// can resolve what depends on it. The rest is resolved here, so that mistakes show before that.
TrainSettings resolved_without_ranks(TrainSettings settings) {
  settings.micro_batch = "fixed";
  settings.accumulate = 0;
  settings.balance = Balance::kEqual;
  settings.speeds.clear();
  settings.servers = 0;
  return resolve(settings);
}

// The number of ranks under mpirun, srun or torchrun is theirs.
void take_ranks(TrainSettings& settings, const TrainSettings& given, const ForeignRank& foreign) {
  TRIREME_CHECK(given.ranks == 0 || given.ranks == foreign.size,
                "-n: expected {}, the number of ranks that {} started, or no -n, found {}",
                {foreign.size, foreign.launcher, given.ranks});
  settings.ranks = foreign.size;
}

// Whether ranks of this run have been started here: each has a log from then on.
bool ranks_have_begun(const fs::path& log_dir) {
  std::error_code error;
  for (fs::directory_iterator it(log_dir, error), end; !error && it != end; it.increment(error)) {
    if (it->path().filename().string().starts_with("rank-")) {
      return true;
    }
  }
  return false;
}

// The worker, as one rank. What rank 0 is told here it tells the others.
std::vector<std::string> worker_words(const std::optional<std::int64_t>& step) {
  std::vector<std::string> words = {"train"};
  if (step) {
    words.push_back(std::to_string(*step));
  }
  return words;
}

// Becomes one rank of the job that another launcher has started.
int train_as_rank(const TrainSettings& settings,
                  const LaunchOptions& machines,
                  const std::optional<std::int64_t>& step) {
  for (const std::string& variable : communication_variables(machines)) {
    const std::size_t end = variable.find('=');
    setenv(variable.substr(0, end).c_str(), variable.substr(end + 1).c_str(), 1);
  }
  const std::string threads = std::to_string(settings.threads);
  for (const char* name : {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"}) {
    setenv(name, threads.c_str(), 1);
  }
  setenv(kEnvTimeout, concat(settings.timeout).c_str(), 1);
  return run_worker(worker_words(step));
}

int run_training(const TrainCommand& command) {
  if (command.help || command.page) {
    return print_text(command.help ? train_help() : settings_page());
  }
  TrainSettings given = given_over({}, command);
  if (given.ranks == 0) {
    LaunchOptions most;
    most.ranks = 0;
    apply(command.elastic, most);
    given.ranks = most.ranks;
  }
  const std::optional<ForeignRank> foreign = foreign_rank();
  if (foreign) {
    setenv("TERM", "dumb", 1);  // mpirun gives ranks a terminal, wherever their output goes
  }
  if (foreign && foreign->rank > 0) {
    return train_as_rank(given, command.machines, std::nullopt);  // rank 0 tells it everything
  }
  TRIREME_CHECK(!foreign || command.machines.nodes == 1,
                "--nnodes: {} has already started the ranks of this job: leave out --nnodes, or "
                "start one trireme train per machine without {}",
                {foreign->launcher, foreign->launcher});
  TRIREME_CHECK(
      !foreign || (command.machines.token_file.empty() && command.machines.rendezvous.empty()),
      "--token-file, --rendezvous: the ranks that {} starts are told by TRIREME_TOKEN and "
      "TRIREME_RENDEZVOUS: export these instead",
      {foreign->launcher});
  const std::string run = named_run(command, given);
  if (command.supervised.restarts > 0) {
    check_supervised(given, run, command.resume, foreign ? foreign->launcher : "");
    return supervise(command.supervised, command.machines);
  }
  const std::optional<std::int64_t> step = step_to_resume(run, command.resume);
  const bool several = command.machines.nodes > 1;
  TRIREME_CHECK(!several || given.ranks > 0,
                "--nnodes {}: expected -n N, the number of ranks on this machine, found none",
                {command.machines.nodes});
  TrainSettings wanted = step ? continued(run, *step, given, command) : given;
  if (foreign) {
    take_ranks(wanted, given, *foreign);
  }
  if (!command.elastic.range.empty() && !command.typed().contains("ranks")) {
    wanted.ranks = given.ranks;  // and not as many as the losses of the run so far have left
  }
  if (several && command.print_config) {
    wanted.ranks *= command.machines.nodes;  // if every machine has as many
  }
  const bool knows_ranks = !several || command.print_config;
  TrainSettings settings;
  TrainSettings checked;
  naming_flags(command, [&] {
    wanted = with_device(wanted, several || (foreign && !foreign->one_machine));
    checked = knows_ranks ? resolve(wanted) : resolved_without_ranks(wanted);
    settings = knows_ranks ? checked : wanted;
    check_effects(given, command.typed(), command.config, checked);
  });
  settings.run = run;
  if (step && knows_ranks) {
    check_settings(run, *step, settings);
  }
  if (command.print_config) {
    return print_text(used_settings_json(settings, known_format(settings)) + "\n");
  }
  TRIREME_CHECK(!several || !settings.run.empty(),
                "--nnodes {}: expected --run FOLDER, a folder that all machines share, found none",
                {command.machines.nodes});
  check_data(checked, step.has_value());
  remember_folder(settings);
  settings.threads = checked.threads;
  LaunchOptions options = command.machines;
  options.ranks = static_cast<int>(settings.ranks);
  apply(command.elastic, options);
  TRIREME_CHECK(!options.elastic || !foreign,
                "--elastic, --restart: {} has started the ranks, so it is {} that can start them "
                "again: leave them out",
                {foreign->launcher, foreign->launcher});
  check_elastic(settings, options);
  if (options.elastic) {
    options.elastic->allow_changes = settings.allow_changes;
  }
  apply(command.drill, settings.run, options);
  check_drill(settings, options);
  naming_flags(command, [&] { check_replay(settings, knows_ranks); });
  options.rank_bytes = kLeastRankBytes;
  options.command = worker_command(worker_words(step));
  if (!foreign) {
    check_own_ranks(options);
    check_launch(options);  // before a folder is made
  }
  if (settings.run.empty()) {
    settings.run = dated_folder(settings.model);
  }
  // Machine 0 looks after the folder; what it has decided the ranks of the others are told.
  options.timeout_seconds = settings.timeout;
  const bool has_store = !options.store.place.empty();
  const bool leads = command.machines.node_rank == 0 && !(has_store && has_begun(options));
  if (has_store) {
    // As the command says them: one that comes back finds checkpoints, which say more. The same on
    // all machines, but for:
    TrainSettings alike = given;
    alike.ranks = alike.threads = 0;
    alike.run = fs::absolute(settings.run).lexically_normal().string();
    options.store.identity = to_json(alike);
  }
  std::vector<std::string> made;  // of this run, whose folder nobody had before
  const bool is_new = !step && leads && !is_run_folder(settings.run);
  const bool is_there = fs::exists(settings.run);
  if (leads) {
    FolderLock::check_free(settings.run);
  }
  if (!step && leads) {
    if (command.resume.value.empty() && ended_before_a_checkpoint(settings, several)) {
      std::cout << "the run in " << settings.run
                << " ended before its first checkpoint: starting over\n"
                << std::flush;
      forget_recorded(settings.run);
    }
    try {
      made = begin_run_folder(settings);
    } catch (const ConfigError&) {
      throw;
    } catch (const Error& error) {  // a full disk
      std::cerr << "trireme: " << error.what() << "\n";
      return kExitRankFailed;
    }
  }

  const std::string told = inherited_text(to_json(settings));
  if (foreign) {
    setenv(kEnvTrainSettings, told.c_str(), 1);
    return train_as_rank(settings, command.machines, step);
  }
  options.environment = {concat(kEnvTrainSettings, "=", told)};
  options.threads = static_cast<int>(settings.threads);
  options.log_dir = (fs::path(settings.run) / "logs").string();
  apply(command.drill, settings.run, options);  // whose name is known now
  options.append_logs = step.has_value();       // an earlier attempt's last words are in them
  options.rank0_speaks = true;
  options.end_seconds = kTimeToEnd;
  int code = kExitUsage;
  const auto undo = [&] {
    // Rank 0 takes the settings back where the data cannot be used. Where there has never been a
    // rank, because the machines did not meet, there is nobody to do that.
    if ((!made.empty() && (code == kExitUsage || !is_run_folder(settings.run))) ||
        (is_new && !ranks_have_begun(options.log_dir))) {
      take_back_run_folder(settings.run, made);
    }
    if (!leads && !is_there) {  // another machine's, but for a folder that may be empty
      std::error_code not_empty;
      fs::remove(options.log_dir, not_empty);
      fs::remove(settings.run, not_empty);
    }
  };
  try {
    code = launch(options);
  } catch (const ConfigError&) {
    undo();
    throw;
  }
  undo();
  if (const std::string advice =
          leads && code > kExitUsage ? how_to_resume(settings.run, step) : "";
      !advice.empty()) {
    std::cerr << "trireme: " << advice << "\n";
  }
  return code;
}

}  // namespace

void add_train_command(CLI::App& program, Action& action) {
  auto command = std::make_shared<TrainCommand>();
  CLI::App* train =
      program.add_subcommand("train", "Train a built-in model: trireme train [-n N] [SETTINGS]");
  train->set_help_flag();
  train->add_flag("-h,--help", command->help, "Show all settings");
  train->add_option("--config", command->config, "Read settings from a JSON file")
      ->type_name("FILE");
  train
      ->add_option_function<std::string>(
          "--resume",
          [command](const std::string& value) {
            command->resume = {true, value};
          },
          "Resume from a checkpoint")
      ->expected(0, 1)
      ->type_name("[RUN|STEP|never]");
  add_machine_options(*train, command->machines);
  add_store_options(*train, command->machines);
  add_elastic_options(*train, command->elastic);
  add_drill_options(*train, command->drill);
  add_supervise_option(*train, command->supervised);
  train->add_flag(
      "--print-config", command->print_config, "Print the settings that have an effect");
  train->add_flag("--settings-page", command->page, "")->group("");  // for docs/train.md
  for (const Setting& setting : settings_table()) {
    const std::string names = (setting.name == "ranks" ? "-n," : "") + setting.flag();
    const bool switches = setting.kind == "on/off";
    CLI::Option* option = train->add_option_function<std::string>(
        names,
        [command, &setting, switches](const std::string& value) {
          // --flip is --flip true
          command->flags.emplace_back(&setting, switches && value.empty() ? "true" : value);
        },
        setting.meaning);
    option->expected(switches ? 0 : 1, 1);
  }
  train->callback([&action, command] { action = [command] { return run_training(*command); }; });
}

}  // namespace trireme::tools
