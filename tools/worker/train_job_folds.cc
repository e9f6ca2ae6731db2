// Cross-validation: a training for each fold.

#include <algorithm>
#include <filesystem>

#include "job_description.h"
#include "job_settings.h"
#include "stop_signal.h"
#include "train_job.h"
#include "trireme/comm/tell.h"
#include "trireme/core/error.h"
#include "trireme/observe/line_file.h"
#include "trireme/settings/run_folder.h"
#include "trireme/settings/settings_table.h"
#include "trireme/train/training_report.h"

namespace trireme::worker {

namespace fs = std::filesystem;
using detail::concat;

std::string TrainJob::fold_folder(int fold) const {
  return concat(run_, "/fold-", fold + 1);
}

std::vector<std::optional<TrainResult>> TrainJob::earlier_folds() {
  std::vector<std::optional<TrainResult>> earlier;
  for (int fold = 0; step_ && fold < settings_.folds; ++fold) {
    const std::string path = fold_folder(fold) + "/summary.json";
    earlier.push_back(
        result_in_summary(all_texts(*world_, leads() && fs::exists(path) ? text_of(path) : "")[0]));
    if (leads() && earlier.back()) {
      print(concat("fold ", fold + 1, " of ", settings_.folds, " is already finished"));
    }
  }
  return earlier;
}

void TrainJob::prepare_folder(const std::string& folder) const {
  std::error_code ignored;
  const std::string checkpoints = concat(folder, "/", kCheckpointsFolder);
  if (!fs::is_directory(checkpoints, ignored) || !CheckpointFolder(checkpoints).newest()) {
    forget_recorded(folder);
  }
  fs::create_directories(folder);
}

int TrainJob::validate() {
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
  // Else it is only asked again, and was trained with what it was trained with.
  const bool trains =
      earlier.empty() || std::ranges::any_of(earlier, [](const auto& fold) { return !fold; });
  if (leads()) {
    std::error_code ignored;
    fs::remove(run_ + "/summary.json", ignored);  // the run has not ended after all
    if (trains) {
      write_whole_file(run_ + "/config.json", to_json(settings_) + "\n");
    }
  }
  bool described = false;
  const bool many = settings_.folds > static_cast<std::int64_t>(kMostFoldsShown);
  std::string fold_name;
  const auto observer_of = [&](int fold, const Trainable& model) -> std::shared_ptr<TrainObserver> {
    has_model_ = true;
    if (!leads()) {
      return nullptr;
    }
    if (!described) {
      print(job_description(settings_, model, goes_on()));
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
  const std::vector<TrainResult> results =
      cross_validate(settings_, opened.parts.train, observer_of, world_, wants_stop, keep, before);
  if (leads()) {
    const std::string path = run_ + "/config.json";
    write_whole_file(
        run_ + "/summary.json",
        folds_json(trains ? settings_ : recorded_settings(text_of(path), path), results));
    print(concat("\n", folds_table(results, settings_.goal)));
  }
  world_->barrier().wait();
  return exit_code(results.back());
}

}  // namespace trireme::worker
