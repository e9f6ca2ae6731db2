#pragma once

#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <string>

#include "trireme/observe/event_file.h"
#include "trireme/observe/line_file.h"
#include "trireme/observe/progress_line.h"
#include "trireme/train/trainer.h"

namespace trireme {

// Keeps a training in a folder, and shows it:
//   config.json          the settings in force
//   metrics.jsonl        a line per step, and per evaluation
//   events.out.tfevents  the same for TensorBoard
//   train.log            what was said
//   model.safetensors    the weights at the end; best.safetensors: of the best evaluation
//   evaluation.csv       each evaluated sample's result
//   samples.jsonl        where asked for, the numbers of each step's samples
//   summary.json         the result
// Numbers are written with all their digits. Throws Error with file and reason when a file cannot
// be written.
class RunRecorder final : public TrainObserver {
 public:
  // `folder` exists. `out`: where progress is shown, null for nowhere.
  RunRecorder(const std::string& folder, const TrainSettings& settings, std::FILE* out);

  void step(const StepReport& report) override;
  void evaluated(std::int64_t step, const Evaluation& evaluation, bool best) override;
  void values(const std::string& tag, std::int64_t step, std::span<const float> values) override;
  void message(const std::string& text) override;
  void weights(const std::string& which, const torch::nn::Module& module) override;
  void samples(const std::vector<std::int64_t>& samples) override;

  // Writes evaluation.csv and summary.json, and ends the live line.
  void finish(const TrainResult& result);
  // The run ended with an exception: summary.json says so.
  void fail(const std::string& reason);

 private:
  void write(const StepReport& report);
  void write_waiting();

  std::string file(const std::string& name) const { return folder_ + "/" + name; }

  std::string folder_;
  TrainSettings settings_;
  ProgressLine progress_;
  LineFile metrics_;
  LineFile log_;
  std::unique_ptr<EventFile> events_;
  std::unique_ptr<LineFile> samples_;
  // Steps that are still to be written: many at a time cost a fraction of one at a time, between
  // two steps that fill every cache.
  std::vector<StepReport> waiting_;
  std::chrono::steady_clock::time_point written_ = std::chrono::steady_clock::now();
  std::string note_;  // the last evaluation, for the live line
  // Since the last line: a step alone says little about speed.
  double seconds_ = 0;
  std::int64_t units_ = 0;
};

}  // namespace trireme
