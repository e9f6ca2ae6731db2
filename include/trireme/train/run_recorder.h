#pragma once

#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "trireme/observe/event_file.h"
#include "trireme/observe/line_file.h"
#include "trireme/observe/progress_line.h"
#include "trireme/train/trainer.h"

namespace trireme {

namespace detail {
class BestWeights;
}

// Of a run's folder: where its checkpoints are.
inline constexpr const char* kCheckpointsFolder = "checkpoints";

// Keeps a training in a folder, and shows it:
//   config.json          the settings in force
//   metrics.jsonl        a line per step, and per evaluation
//   events.out.tfevents  the same for TensorBoard
//   train.log            what was said
//   model.safetensors    the weights at the end; best.safetensors: of the best evaluation
//   evaluation.csv       each evaluated sample's result
//   classes.json         what the classes in it are called in the data, where that has names
//   preprocessing.json   how the data was read, for other data to be read the same way
//   samples.jsonl        where asked for, the numbers of each step's samples
//   summary.json         the result
// Numbers are written with all their digits. Throws Error with file and reason when a file cannot
// be written.
//
// A run that resumes from a checkpoint continues its files: what they have of later steps is cut
// off, so that there are no gaps and no duplicates.
class RunRecorder final : public TrainObserver {
 public:
  // `folder` exists; nothing in it is changed before training begins. `out`: where progress is
  // shown, null for nowhere.
  RunRecorder(const std::string& folder, const TrainSettings& settings, std::FILE* out);
  ~RunRecorder() override;

  // What the classes are called; before training begins.
  void name_classes(const std::vector<std::string>& names) { class_names_ = names; }

  void begins(const TrainBeginning& beginning) override;
  void step(const StepReport& report) override;
  void evaluated(std::int64_t step, const Evaluation& evaluation, bool best) override;
  void values(const std::string& tag, std::int64_t step, std::span<const float> values) override;
  void message(const std::string& text) override;
  void weights(const std::string& which, const torch::nn::Module& module) override;
  void samples(const std::vector<std::int64_t>& samples) override;
  void saves(std::int64_t step) override;
  void keeps() override;
  void settle() override;

  // Writes evaluation.csv and summary.json, and ends the live line.
  void finish(const TrainResult& result);
  // What they say. Of a run that had nothing left to train when it was asked again, what its
  // training was like is what an earlier summary says.
  const TrainSettings& settings() const { return settings_; }
  TrainResult reported(TrainResult result) const;
  // The run ended with an exception: summary.json says so.
  void fail(const std::string& reason);

 private:
  void begin_files();
  void continue_files(const TrainBeginning& beginning);
  void write_preprocessing(const Parts& data);
  void write(const StepReport& report);
  void write_waiting();
  void note_lost_reader();
  void flush();

  std::string file(const std::string& name) const { return folder_ + "/" + name; }

  std::string folder_;
  TrainSettings settings_;
  ProgressLine progress_;
  std::unique_ptr<detail::BestWeights> best_;
  // From the beginning of training on; before it, nothing in the folder changes.
  std::unique_ptr<LineFile> metrics_;
  std::unique_ptr<EventFile> events_;
  std::unique_ptr<LineFile> samples_;
  std::unique_ptr<LineFile> log_;  // the last to be opened: where it is, the others are
  std::optional<TrainResult> earlier_;
  std::vector<std::string> early_messages_;
  std::vector<std::string> class_names_;
  // Steps that are still to be written: many at a time cost a fraction of one at a time, between
  // two steps that fill every cache.
  std::vector<StepReport> waiting_;
  std::chrono::steady_clock::time_point written_ = std::chrono::steady_clock::now();
  std::string note_;  // the last evaluation, for the live line
  bool reader_lost_ = false;
  // Since the last line: a step alone says little about speed.
  double seconds_ = 0;
  std::int64_t units_ = 0;
};

}  // namespace trireme
