#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <limits>
#include <optional>
#include <sstream>
#include <utility>

#include <malloc.h>

#include <ATen/Parallel.h>

#include "data_settings.h"
#include "known_warnings.h"
#include "settled_compression.h"
#include "shared_check.h"
#include "trireme/checkpoint/checkpoint_folder.h"
#include "trireme/checkpoint/vault.h"
#include "trireme/comm/elastic.h"
#include "trireme/comm/kept_memory.h"
#include "trireme/comm/tell.h"
#include "trireme/comm/world.h"
#include "trireme/core/counted.h"
#include "trireme/core/environment.h"
#include "trireme/core/error.h"
#include "trireme/core/log.h"
#include "trireme/launch/launcher.h"
#include "trireme/observe/line_file.h"
#include "trireme/settings/device_choice.h"
#include "trireme/settings/differences.h"
#include "trireme/settings/run_folder.h"
#include "trireme/settings/settings_table.h"
#include "trireme/settings/values.h"
#include "trireme/tensor/torch_cuda.h"
#include "trireme/train/run_recorder.h"
#include "trireme/train/training_report.h"
#include "worker.h"

namespace trireme::worker {
namespace {

namespace fs = std::filesystem;
using detail::concat;
using detail::counted;

volatile std::sig_atomic_t g_stop = 0;

// The first signal asks for an orderly end, between steps; the launcher kills where that takes too
// long.
void watch_signals() {
  struct sigaction action {};
  action.sa_handler = [](int number) { g_stop = number; };
  action.sa_flags = SA_RESTART;
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction before {};
    // What nohup or a script in the background had ignored stays ignored.
    if (sigaction(number, nullptr, &before) == 0 && before.sa_handler != SIG_IGN) {
      sigaction(number, &action, nullptr);
    }
  }
}

std::string text_of(const fs::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  TRIREME_CHECK(file.good(), "\"", path.string(), "\" could not be read");
  return text.str();
}

// Activations are freed and allocated again in every step. Left to itself, the C library gives
// large blocks back to the kernel and gets them anew, page by page, which took 5 % of a convnet's
// step.
void keep_freed_memory() {
  constexpr int kLargestThreshold = 32 << 20;  // of the C library
  mallopt(M_MMAP_THRESHOLD, kLargestThreshold);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  mallopt(M_TOP_PAD, 64 << 20);
}

class Job {
 public:
  Job(std::shared_ptr<World> world, const std::string& step) : world_(std::move(world)) {
    // Other machines' commands may have looked at the run a moment earlier, or have other flags,
    // and under another launcher only rank 0 knows the folder: what rank 0 was told applies to all.
    const std::string told = all_texts(*world_, leads() ? step + "\n" + given_settings() : "")[0];
    const std::size_t end = told.find('\n');
    step_ = parse_integer(told.substr(0, end));
    apply_json(settings_, told.substr(end), "the settings of rank 0");
    run_ = settings_.run;
    // To keep it, stale ranks would have to be in step.
    if (launcher_keeps_memory() && settings_.folds == 0 && !trains_stale(settings_)) {
      vault_ = std::make_shared<Vault>(world_);
    }
    // The one that was named is where nothing has been kept since; later it may be gone.
    const bool is_lost = vault_ && !vault_->lost().empty();
    if (is_after_a_loss() && (!step_ || is_lost || trains_stale(settings_) || is_kept())) {
      step_ = step_after_a_loss();
    }
    if (is_lost && leads()) {
      log(LogLevel::kWarning,
          concat("{}: {}",
                 {vault_->lost(),
                  step_ ? concat("the training goes back to the checkpoint of step ", *step_)
                        : "the training begins anew, as there is no checkpoint (--save-every)"}));
    }
    if (at::get_num_threads() != settings_.threads) {  // a launcher that was not told
      at::set_num_threads(static_cast<int>(settings_.threads));
    }
  }

  int run() {
    settle_ranks();
    if (leads()) {
      lock_.emplace(run_);  // before anything in the folder changes
    }
    compression_text_ = settle_compression(settings_, *world_, step_ || goes_on());
    if (leads()) {
      if (is_after_a_loss() && settings_.folds == 0 && !is_kept()) {
        prepare_folder(run_);
      }
    }
    try {
      return settings_.folds > 0 ? validate() : train_once();
    } catch (const std::exception& error) {
      // An elastic job goes on after a loss.
      const bool goes_on =
          launcher_keeps_memory() && dynamic_cast<const CommError*>(&error) != nullptr;
      if (recorder_ && !goes_on) {
        recorder_->fail(detail::reason_of(error));
      }
      throw;
    }
  }

  int rank() const { return world_->rank(); }

  // What would be the same again: settings or data that cannot be used, a model that does not fit.
  // A checkpoint may be another one the next time.
  bool refuses(const std::exception& error) const {
    if (dynamic_cast<const MemoryError*>(&error) != nullptr) {
      return (!has_model_ || has_never_fitted()) && !is_after_a_loss();
    }
    return dynamic_cast<const ConfigError*>(&error) != nullptr ||
           (dynamic_cast<const DataError*>(&error) != nullptr &&
            dynamic_cast<const CheckpointError*>(&error) == nullptr);
  }

  // A limit of the user's own that no step has fitted into yet.
  bool has_never_fitted() const {
    const fs::path steps = fs::path(run_) / "metrics.jsonl";
    std::error_code ignored;
    return !step_ && memory_limit_bytes(settings_.memory_limit).value_or(0) > 0 &&
           (!fs::exists(steps, ignored) || fs::file_size(steps, ignored) == 0);
  }

  // Not a run yet: its launcher removes the folder. Between two folds there is no recorder.
  void take_back_settings() const {
    std::error_code ignored;
    if (leads() && lock_ && !step_ && !recorder_ && !goes_on() &&
        !fs::exists(run_ + "/metrics.jsonl", ignored) && !fs::exists(fold_folder(0), ignored)) {
      fs::remove(run_ + "/config.json", ignored);
    }
  }
  // Lets the other ranks know at once why this one leaves. Where settings or data cannot be used,
  // what the ranks did last explains nothing.
  void abandon(const std::string& reason, bool by_input) {
    if (by_input) {
      take_back_settings();
      world_->stop(reason);
    } else {
      world_->abort(reason);
    }
  }

 private:
  bool leads() const { return world_->rank() == 0; }

  static std::string given_settings() {
    const auto path = env_string(kEnvTrainSettings);
    TRIREME_CHECK(path,
                  "expected settings at the path in ",
                  kEnvTrainSettings,
                  ", found no such variable: it is trireme train that starts this program");
    return text_of(*path);
  }

  bool is_after_a_loss() const { return launcher_keeps_memory() && world_->epoch() > 0; }
  // And nothing has to be said again but what has changed.
  bool goes_on() const { return is_after_a_loss() && (step_ || is_kept()); }
  bool is_kept() const { return vault_ && vault_->newest(); }

  // The checkpoint to go on with where the launcher keeps nothing newer and none was named: the
  // newest, or the first fold that has not ended. Nothing: there is none.
  std::optional<std::int64_t> step_after_a_loss() const {
    if (settings_.folds > 0) {
      return 0;
    }
    std::string found;
    if (leads()) {
      const std::string checkpoints = concat(run_, "/", kCheckpointsFolder);
      const auto newest =
          fs::is_directory(checkpoints) ? CheckpointFolder(checkpoints).newest() : std::nullopt;
      found = newest ? std::to_string(*newest) : "";
    }
    return parse_integer(all_texts(*world_, found)[0]);
  }

  // On several machines nobody has known before how many ranks they have together.
  void settle_ranks() {
    settings_.ranks = world_->size();
    try {
      settings_ = resolve(settings_);
    } catch (const ConfigError&) {
      if (!leads()) {
        world_->barrier().wait();  // rank 0 says why, and its end is the barrier's
      }
      throw;
    }
    warn_of_other_settings();
    if (leads() && step_ && settings_.folds > 0 && fs::is_directory(fold_folder(0))) {
      const std::string path = run_ + "/config.json";
      check_same_folds(
          text_of(fs::exists(path) ? path : fold_folder(0) + "/config.json"), settings_, run_);
    }
  }

  // Of many folds, the first alone shows its steps.
  std::shared_ptr<RunRecorder> make_recorder(const std::string& folder, bool quiet = false) {
    auto recorder = std::make_shared<RunRecorder>(folder, settings_, quiet ? nullptr : stdout);
    if (!compression_text_.empty()) {
      recorder->message(std::exchange(compression_text_, ""));
    }
    return recorder;
  }

  // Once, by the first rank of each machine: its command has no say.
  void warn_of_other_settings() const {
    static bool looked = false;
    const auto path = env_string(kEnvTrainSettings);
    if (std::exchange(looked, true) || leads() || world_->local_rank() != 0 || !path) {
      return;
    }
    TrainSettings own;
    try {
      apply_json(own, text_of(*path), "the settings of this machine");
      own.ranks = settings_.ranks;
      own = resolve(own);
    } catch (const ConfigError&) {
      return;  // it may have been for other ranks
    }
    std::string others;
    for (const Setting& setting : settings_table()) {
      // The folder may go by another name here, and each launcher has a timeout of its own.
      if (setting.name != "run" && setting.name != "timeout" &&
          setting.to_json(own) != setting.to_json(settings_)) {
        others += concat("{}{} is {}, not {}",
                         {others.empty() ? "" : "; ",
                          setting.flag(),
                          value_text(setting.name, settings_),
                          value_text(setting.name, own)});
      }
    }
    if (!others.empty()) {
      log(LogLevel::kWarning,
          concat("the command of this machine has settings other than the job's, which apply: ",
                 others));
    }
  }

  static bool wants_stop() { return g_stop != 0; }

  OpenedData open() {
    DataSource source = source_of(settings_);
    source.csv.check = shared_check(run_, step_.has_value(), *world_);
    OpenedData opened = open_data(source);
    if (leads() && !goes_on()) {
      print(opened.description);
    }
    return opened;
  }

  void print(const std::string& text) const { std::cout << text << "\n" << std::flush; }

  UsableGpus gpus_in_use() const {
    UsableGpus gpus = usable_gpus();
    gpus.names.resize(std::min(gpus.names.size(), static_cast<std::size_t>(settings_.ranks)));
    return gpus;
  }

  void describe(const Trainable& model) const {
    const bool on_gpu = settings_.device == TrainDevice::kCuda;
    const std::string ranks = concat("{}{}, {}{} each",
                                     {counted(settings_.ranks, "rank"),
                                      on_gpu ? concat(" on ", gpus_text(gpus_in_use())) : "",
                                      model.in_parts        ? "ZeRO-3, built in parts, "
                                      : settings_.zero > 0  ? concat("ZeRO-", settings_.zero, ", ")
                                      : settings_.ranks > 1 ? "DDP, "
                                                            : "",
                                      counted(at::get_num_threads(), "thread")});
    if (goes_on()) {
      print("now " + ranks);
      return;
    }
    std::int64_t numel = 0;
    for (const auto& parameter : model.module->parameters()) {
      numel += parameter.numel();
    }
    print(concat("{} with {} parameters, {}; run folder {}",
                 {settings_.model, count_text(static_cast<double>(numel)), ranks, run_}));
  }

  int train_once() {
    const OpenedData opened = open();
    const Parts data = prepared(settings_, opened.parts, *world_);
    const Trainable model = make_model(settings_, data.train->shape(), *world_);
    has_model_ = true;
    if (leads()) {
      describe(model);
      recorder_ = make_recorder(run_);
      recorder_->name_classes(data.train->class_names());
    }
    TrainCheckpoints checkpoints{.resume = step_.has_value(), .step = step_, .vault = vault_};
    if (step_ || settings_.save_every > 0) {
      checkpoints.folder = concat(run_, "/", kCheckpointsFolder);
    }
    const TrainResult result =
        train(settings_, model, data, world_, recorder_.get(), wants_stop, checkpoints);
    if (leads()) {
      recorder_->finish(result);
      print("\n" + summary_table(settings_, result));
      if (settings_.save_weights) {
        print(concat("weights: ", run_, "/model.safetensors"));
      }
    }
    world_->barrier().wait();  // nobody leaves before the folder is complete
    return end(result.status == TrainResult::Status::kInterrupted);
  }

  std::string fold_folder(int fold) const { return concat(run_, "/fold-", fold + 1); }

  // The folds that had ended when the run was ended, as rank 0 finds them.
  std::vector<std::optional<TrainResult>> earlier_folds() {
    std::vector<std::optional<TrainResult>> earlier;
    for (int fold = 0; step_ && fold < settings_.folds; ++fold) {
      const std::string path = fold_folder(fold) + "/summary.json";
      earlier.push_back(result_in_summary(
          all_texts(*world_, leads() && fs::exists(path) ? text_of(path) : "")[0]));
      if (leads() && earlier.back()) {
        print(concat("fold ", fold + 1, " of ", settings_.folds, " had ended"));
      }
    }
    return earlier;
  }

  // A fold that was not saved begins anew, and leaves nothing of its first attempt.
  void prepare_folder(const std::string& folder) const {
    std::error_code ignored;
    const std::string checkpoints = concat(folder, "/", kCheckpointsFolder);
    if (!fs::is_directory(checkpoints, ignored) || !CheckpointFolder(checkpoints).newest()) {
      forget_recorded(folder);
    }
    fs::create_directories(folder);
  }

  int validate() {
    const OpenedData opened = open();
    const std::vector<std::optional<TrainResult>> earlier = earlier_folds();
    EarlierFolds before;
    before.result_of = [&](int fold) {
      return earlier.empty() ? std::nullopt : earlier[static_cast<std::size_t>(fold)];
    };
    before.checkpoints_of = [&](int fold) {
      TrainCheckpoints checkpoints{.resume = step_.has_value()};
      const std::string folder = concat(fold_folder(fold), "/", kCheckpointsFolder);
      if (settings_.save_every > 0 || (step_ && fs::is_directory(folder))) {
        checkpoints.folder = folder;
      }
      return checkpoints;
    };
    if (leads()) {
      std::error_code ignored;
      fs::remove(run_ + "/summary.json", ignored);  // the run has not ended after all
      if (!step_) {
        write_whole_file(run_ + "/config.json", to_json(settings_) + "\n");
      }
    }
    bool described = false;
    const bool many = settings_.folds > static_cast<std::int64_t>(kMostFoldsShown);
    std::string fold_name;
    const auto observer_of = [&](int fold,
                                 const Trainable& model) -> std::shared_ptr<TrainObserver> {
      has_model_ = true;
      if (!leads()) {
        return nullptr;
      }
      if (!described) {
        describe(model);
        described = true;
      }
      const std::string folder = fold_folder(fold);
      prepare_folder(folder);
      fold_name = concat("fold ", fold + 1, " of ", settings_.folds);
      const bool quiet = many && fold > 0;
      if (!quiet) {
        print(fold_name);
      }
      recorder_ = make_recorder(folder, quiet);
      recorder_->name_classes(opened.parts.train->class_names());
      return recorder_;
    };
    // At once: whatever ends the run in a later fold, this one is complete.
    const auto keep = [&](const TrainResult& fold) {
      if (leads()) {
        if (many) {
          print(concat("{}: {}", {fold_name, fold.evaluation.to_string()}));
        }
        recorder_->finish(fold);
        recorder_.reset();
      }
    };
    const std::vector<TrainResult> results = cross_validate(
        settings_, opened.parts.train, observer_of, world_, wants_stop, keep, before);
    if (leads()) {
      write_whole_file(run_ + "/summary.json", folds_json(settings_, results));
      print("\n" + folds_table(results));
    }
    world_->barrier().wait();
    return end(results.back().status == TrainResult::Status::kInterrupted);
  }

  // The exit code. Where one rank alone was asked to end, the job was: all end as it does, and rank
  // 0 says which it was.
  int end(bool interrupted) {
    if (!interrupted) {
      return 0;
    }
    const int signal = g_stop;
    const std::vector<std::string> asked =
        all_texts(*world_, signal != 0 ? std::to_string(signal) : "");
    std::int64_t number = 0;
    std::string ranks;
    for (std::size_t rank = 0; rank < asked.size(); ++rank) {
      if (const auto its = parse_integer(asked[rank])) {
        number = number != 0 ? number : *its;
        ranks += concat(ranks.empty() ? "rank " : ", ", rank);
      }
    }
    const bool of_some = std::count(asked.begin(), asked.end(), "") > 0;
    if (leads() && of_some) {  // else it was the launcher, which says so itself
      std::fprintf(stderr,
                   "trireme: %s of %d was asked to end by signal %d (%s), which ends the job\n",
                   ranks.c_str(),
                   world_->size(),
                   static_cast<int>(number),
                   strsignal(static_cast<int>(number)));
    }
    return 128 + static_cast<int>(number);
  }

  std::shared_ptr<World> world_;
  std::optional<std::int64_t> step_;
  TrainSettings settings_;
  std::string run_;
  std::optional<FolderLock> lock_;
  std::shared_ptr<Vault> vault_;
  std::shared_ptr<RunRecorder> recorder_;
  bool has_model_ = false;
  std::string compression_text_;  // to be told when there is a recorder
};

// "rank 0 of 2: REASON (found by rank 1)", as a communicator has it.
std::string without_ranks(const std::string& text) {
  const std::size_t begin = text.find(": ");
  const std::size_t end = text.rfind(" (found by rank ");
  return begin == std::string::npos || end == std::string::npos || end < begin
             ? text
             : text.substr(begin + 2, end - begin - 2);
}

// One epoch of the job.
int train_in(const std::shared_ptr<World>& world, const std::string& step) {
  Job job(world, step);
  watch_signals();  // before there is a world there is nothing to end in good order
  try {
    return job.run();
  } catch (const CommError& error) {
    if (error.reason() == CommError::Reason::kStopped) {
      job.take_back_settings();  // it is another rank that cannot use them
    }
    // The others know. Why a rank has left them alone is told by rank 0, once; what is wrong with
    // the input is no matter of ranks.
    const bool stopped = error.reason() == CommError::Reason::kStopped;
    if (job.rank() == 0 && stopped) {
      std::fprintf(stderr, "trireme: %s\n", without_ranks(error.what()).c_str());
    }
    if (stopped || (job.rank() > 0 && error.reason() == CommError::Reason::kAborted)) {
      return 1;
    }
    throw;
  } catch (const std::exception& error) {
    // Most failures are seen by all ranks alike; one says so. What only this rank has seen reaches
    // rank 0 as the reason why it was left alone.
    const bool usage = dynamic_cast<const ConfigError*>(&error) != nullptr;
    const std::string reason = usage ? with_flags(error.what(), {}) : detail::reason_of(error);
    const bool refused = job.refuses(error);
    const bool by_input = refused || dynamic_cast<const DataError*>(&error) != nullptr;
    job.abandon(by_input ? reason : concat("rank ", job.rank(), ": ", reason), by_input);
    if (job.rank() == 0) {
      std::fprintf(stderr, "trireme: %s\n", reason.c_str());
    }
    return refused ? kExitUsage : 1;
  }
}

}  // namespace

int train_as_rank(const std::string& step) {
  // Rank 0 writes to the terminal from a process group of its own: not a reason to stop it.
  std::signal(SIGTTOU, SIG_IGN);
  keep_freed_memory();
  SlowProductsAreKnown handler;
  const c10::WarningUtils::WarningHandlerGuard guard(&handler);
  return run_elastic([&](const std::shared_ptr<World>& world) { return train_in(world, step); });
}

}  // namespace trireme::worker
