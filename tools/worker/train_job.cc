#include "train_job.h"

#include <cstdio>
#include <filesystem>
#include <iostream>
#include <utility>

#include <ATen/Parallel.h>

#include "data_settings.h"
#include "job_description.h"
#include "job_settings.h"
#include "settled_compression.h"
#include "shared_check.h"
#include "stop_signal.h"
#include "trireme/comm/tell.h"
#include "trireme/core/environment.h"
#include "trireme/core/error.h"
#include "trireme/core/log.h"
#include "trireme/settings/differences.h"
#include "trireme/settings/run_folder.h"
#include "trireme/settings/settings_table.h"
#include "trireme/settings/values.h"
#include "trireme/train/training_report.h"

namespace trireme::worker {

namespace fs = std::filesystem;
using detail::concat;

TrainJob::TrainJob(std::shared_ptr<World> world, const std::string& step)
    : world_(std::move(world)) {
  // Other machines' commands may have looked at the run a moment earlier, or have other flags,
  // and under another launcher only rank 0 knows the folder: what rank 0 was told applies to all.
  const std::string told = all_texts(*world_, leads() ? step + "\n" + given_settings() : "")[0];
  const std::size_t end = told.find('\n');
  step_ = parse_integer(told.substr(0, end));
  apply_json(settings_, told.substr(end), "the settings of rank 0");
  run_ = settings_.run;
  // To keep it, stale ranks would have to be in step.
  TRIREME_CHECK(
      !launcher_keeps_memory() || offload_place(settings_).folder.empty(),
      "offload: {} is for states that do not fit into memory, and a job that outlives the "
      "loss of ranks (--elastic, --restart) keeps a copy of them there: leave one of the "
      "two out",
      {settings_.offload});
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

int TrainJob::run() {
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

bool TrainJob::refuses(const std::exception& error) const {
  if (dynamic_cast<const MemoryError*>(&error) != nullptr) {
    return (!has_model_ || has_never_fitted()) && !is_after_a_loss();
  }
  return dynamic_cast<const ConfigError*>(&error) != nullptr ||
         (dynamic_cast<const DataError*>(&error) != nullptr &&
          dynamic_cast<const CheckpointError*>(&error) == nullptr);
}

bool TrainJob::has_never_fitted() const {
  const fs::path steps = fs::path(run_) / "metrics.jsonl";
  std::error_code ignored;
  return !step_ && memory_limit_bytes(settings_.memory_limit).value_or(0) > 0 &&
         (!fs::exists(steps, ignored) || fs::file_size(steps, ignored) == 0);
}

void TrainJob::take_back_settings() const {
  std::error_code ignored;
  if (leads() && lock_ && !step_ && !goes_on() && !fs::exists(run_ + "/metrics.jsonl", ignored) &&
      !fs::exists(fold_folder(0), ignored)) {
    for (const char* name : {"/config.json", "/.lock"}) {
      fs::remove(run_ + name, ignored);
    }
  }
}

void TrainJob::abandon(const std::string& reason, bool by_input) {
  if (by_input) {
    take_back_settings();
    world_->stop(reason);
  } else {
    world_->abort(reason);
  }
}

std::optional<std::int64_t> TrainJob::step_after_a_loss() const {
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

void TrainJob::settle_ranks() {
  settings_.ranks = world_->size();
  try {
    settings_ = resolve(settings_);
  } catch (const ConfigError&) {
    if (!leads()) {
      world_->barrier().wait();  // rank 0 says why, and its end is the barrier's
    }
    throw;
  }
  warn_of_other_settings(settings_, *world_);
  if (leads() && !settings_.replay.empty()) {
    check_same_replay(settings_);
  }
  if (leads() && step_ && settings_.folds > 0 && fs::is_directory(fold_folder(0))) {
    const std::string path = run_ + "/config.json";
    check_same_folds(
        text_of(fs::exists(path) ? path : fold_folder(0) + "/config.json"), settings_, run_);
  }
}

std::shared_ptr<RunRecorder> TrainJob::make_recorder(const std::string& folder, bool quiet) {
  auto recorder = std::make_shared<RunRecorder>(folder, settings_, quiet ? nullptr : stdout);
  if (!compression_text_.empty()) {
    recorder->message(std::exchange(compression_text_, ""));
  }
  return recorder;
}

OpenedData TrainJob::open() {
  DataSource source = source_of(settings_);
  source.csv.check = shared_check(run_, step_.has_value(), *world_);
  OpenedData opened = open_data(source);
  if (leads() && !goes_on()) {
    print(opened.description);
  }
  return opened;
}

void TrainJob::print(const std::string& text) const {
  std::cout << text << "\n" << std::flush;
}

int TrainJob::train_once() {
  const OpenedData opened = open();
  const Parts data = prepared(settings_, opened.parts, *world_);
  const Trainable model = make_model(settings_, data.train->shape(), *world_);
  has_model_ = true;
  if (leads()) {
    print(job_description(settings_, model, goes_on()));
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
    print("\n" + summary_table(recorder_->settings(), recorder_->reported(result)));
    if (settings_.save_weights) {
      print(concat("weights: ", run_, "/model.safetensors"));
    }
  }
  world_->barrier().wait();  // nobody leaves before the folder is complete
  return exit_code(result);
}

int TrainJob::exit_code(const TrainResult& result) {
  return result.status == TrainResult::Status::kInterrupted ? exit_code_of_stop(*world_) : 0;
}

}  // namespace trireme::worker
