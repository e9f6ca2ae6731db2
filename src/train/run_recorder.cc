#include "trireme/train/run_recorder.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <numeric>

#include <nlohmann/json.hpp>

#include "train/continued_run.h"
#include "trireme/core/error.h"
#include "trireme/settings/settings_table.h"
#include "trireme/train/preprocessing_file.h"
#include "trireme/train/training_report.h"
#include "trireme/train/weights.h"

namespace trireme {
namespace {

using Json = nlohmann::ordered_json;

std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

double norm_of(std::span<const float> values) {
  const auto add_square = [](double sum, double value) { return sum + value * value; };
  return std::sqrt(std::accumulate(values.begin(), values.end(), 0.0, add_square));
}

// Not by printf, whose point is a comma in some locales.
std::string exact(double value) {
  char text[40];
  const auto end = std::to_chars(text,
                                 text + sizeof(text),
                                 value,
                                 std::chars_format::general,
                                 std::numeric_limits<double>::max_digits10);
  return {text, end.ptr};
}

// Before steps are written to their files.
constexpr auto kLongestWait = std::chrono::milliseconds(150);

// One flat JSON object, written as it is built: a step of a small model takes a millisecond, of
// which a JSON library would take one in a hundred. Numbers have all their digits; what is not
// finite is null.
class JsonLine {
 public:
  template <class T>
  void add(std::string_view name, T value) {
    text_ += text_.empty() ? "{\"" : ",\"";
    text_ += name;
    text_ += "\":";
    if constexpr (std::is_same_v<T, bool>) {
      text_ += value ? "true" : "false";
    } else if (!std::isfinite(static_cast<double>(value))) {
      text_ += "null";
    } else {
      char digits[32];
      const auto end = std::to_chars(digits, digits + sizeof(digits), value);
      text_.append(digits, end.ptr);
    }
  }
  std::string text() const { return text_ + "}"; }

 private:
  std::string text_;
};

}  // namespace

RunRecorder::RunRecorder(const std::string& folder, const TrainSettings& settings, std::FILE* out)
    : folder_(folder),
      settings_(settings),
      progress_(out),
      best_(std::make_unique<detail::BestWeights>(folder)) {}

RunRecorder::~RunRecorder() = default;

void RunRecorder::begins(const TrainBeginning& beginning) {
  detail::remove_partial_files(folder_);
  if (beginning.trained_with) {
    settings_ = *beginning.trained_with;
    earlier_ = result_in_summary(text_of(file("summary.json")));
  }
  if (beginning.checkpoint.empty()) {
    begin_files();
  } else {
    continue_files(beginning);
  }
  write_whole_file(file("config.json"), to_json(settings_) + "\n");
  if (!class_names_.empty()) {
    // A name may be any bytes of a file; JSON has characters only.
    write_whole_file(file("classes.json"),
                     Json(class_names_).dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  }
  if (beginning.data != nullptr) {
    write_preprocessing(*beginning.data);
  }
  for (const std::string& text : early_messages_) {
    log_->add(text);
  }
  early_messages_.clear();
}

void RunRecorder::write_preprocessing(const Parts& data) {
  Preprocessing preprocessing = data.train->preprocessing();
  if (preprocessing.format.empty()) {
    return;  // tokens are what they are
  }
  if (data.held_out) {
    for (const std::string& file : data.held_out->preprocessing().checked) {
      std::vector<std::string>& checked = preprocessing.checked;
      if (std::find(checked.begin(), checked.end(), file) == checked.end()) {
        checked.push_back(file);
      }
    }
  }
  write_whole_file(file(kPreprocessingFile), to_json(preprocessing));
}

void RunRecorder::begin_files() {
  metrics_ = std::make_unique<LineFile>(file("metrics.jsonl"));
  if (settings_.tensorboard) {
    events_ = std::make_unique<EventFile>(folder_);
  }
  if (settings_.record_samples) {
    samples_ = std::make_unique<LineFile>(file("samples.jsonl"));
  }
  log_ = std::make_unique<LineFile>(file("train.log"));
}

void RunRecorder::continue_files(const TrainBeginning& beginning) {
  const auto go_on = [&](const std::string& name, const detail::KeptLines& kept) {
    if (kept.steps < beginning.step) {
      early_messages_.push_back(
          detail::concat("{} ends with step {}: what came after it, up to step {}, is missing",
                         {name, kept.steps, beginning.step}));
      progress_.message(early_messages_.back());
    }
    if (kept.damaged > 0) {
      early_messages_.push_back(
          detail::concat(name, ", line ", kept.damaged, ": it is damaged, and is left as it is"));
      progress_.message(early_messages_.back());
    }
    return std::make_unique<LineFile>(file(name), kept.bytes);
  };
  metrics_ =
      go_on("metrics.jsonl",
            detail::kept_metrics(file("metrics.jsonl"), beginning.step, beginning.evaluated));
  if (settings_.record_samples) {
    const detail::KeptLines kept = detail::kept_samples(file("samples.jsonl"), beginning.step);
    samples_ = go_on("samples.jsonl", kept);
    // Line N is of step N, also where a part of the run was not recorded: the next one that resumes
    // counts them.
    for (std::int64_t step = kept.steps; step < beginning.step; ++step) {
      samples_->add("null");
    }
  }
  if (settings_.tensorboard) {
    events_ = std::make_unique<EventFile>(
        folder_,
        beginning.step + 1,
        beginning.same_job ? EventFile::Into::kNewestFile : EventFile::Into::kNewFile);
  }
  best_->put_back(beginning.step, beginning.best_step > 0);
  std::error_code error;
  std::filesystem::remove(file("summary.json"), error);  // the run has not ended after all
  log_ = std::make_unique<LineFile>(file("train.log"), detail::kept_log(file("train.log")));
}

void RunRecorder::step(const StepReport& report) {
  waiting_.push_back(report);
  seconds_ += report.seconds;
  units_ += report.tokens > 0 ? report.tokens : report.samples;
  const bool line =
      report.step % settings_.log_every == 0 || report.step == 1 || report.step == report.steps;
  const bool late = std::chrono::steady_clock::now() - written_ > kLongestWait;
  if (!line && !late) {
    return;
  }
  write_waiting();
  if (!line && !progress_.live()) {
    return;
  }
  const Progress progress{.step = report.step,
                          .steps = report.steps,
                          .loss = report.loss,
                          .learning_rate = report.learning_rate,
                          .per_second = static_cast<double>(units_) / seconds_,
                          .unit = report.tokens > 0 ? "tokens" : "samples",
                          .rank_bytes = report.rank_bytes,
                          .seconds_left = report.seconds_left,
                          .note = progress_.live() ? note_ : ""};
  progress_.show(progress);
  note_lost_reader();
  if (line) {
    log_->add(progress_text(progress));
    seconds_ = 0;
    units_ = 0;
  }
}

void RunRecorder::note_lost_reader() {
  if (!progress_.lost() || reader_lost_) {
    return;
  }
  reader_lost_ = true;
  const std::string text = detail::concat(
      "standard output can no longer be written: the training continues; see ", file("train.log"));
  log_->add(text);
  std::fprintf(stderr, "trireme: %s\n", text.c_str());
}

void RunRecorder::write_waiting() {
  for (const StepReport& report : waiting_) {
    write(report);
  }
  waiting_.clear();
  written_ = std::chrono::steady_clock::now();
}

void RunRecorder::write(const StepReport& report) {
  JsonLine line;
  const auto add = [&](const std::string& name, auto value) {  // to both
    line.add(name, value);
    if (events_) {
      events_->add_scalar("train/" + name, report.step, static_cast<double>(value));
    }
  };
  line.add("step", report.step);
  line.add("epoch", report.epoch);
  add("loss", report.loss);
  add("lr", report.learning_rate);
  if (std::isfinite(report.gradient_norm)) {
    add("grad_norm", report.gradient_norm);
  }
  line.add("seconds", report.seconds);
  line.add("samples", report.samples);
  add("samples_per_second", static_cast<double>(report.samples) / report.seconds);
  if (report.tokens > 0) {
    line.add("tokens_per_second", static_cast<double>(report.tokens) / report.seconds);
  }
  line.add("comm_seconds", report.comm_seconds);
  line.add("data_seconds", report.data_seconds);
  line.add("rank_bytes", report.rank_bytes);
  if (report.sent_bytes > 0) {
    add("sent_bytes", report.sent_bytes);
  }
  if (report.check.step > 0) {
    add("compress_error", report.check.relative_error);
    add("compress_cosine", report.check.cosine);
    add("compress_descent", report.check.descent);
  }
  if (report.averaged_every) {
    add("averaged_every", *report.averaged_every);
  }
  if (report.gpus) {
    add("gpu_busy_percent", report.gpus->busy_percent);
    add("gpu_bytes", report.gpus->memory_bytes);
    add("gpu_temperature", report.gpus->temperature);
    add("gpu_watts", report.gpus->watts);
  }
  if (report.skipped) {
    line.add("skipped", true);
  }
  metrics_->add(line.text());
}

void RunRecorder::evaluated(std::int64_t step, const Evaluation& evaluation, bool best) {
  write_waiting();
  Json line;
  line["step"] = step;
  line["eval"] = evaluation.metrics;
  metrics_->add(line.dump());
  metrics_->flush();
  if (events_) {
    for (const auto& [name, value] : evaluation.metrics) {
      events_->add_scalar("eval/" + name, step, value);
    }
    events_->flush();
  }
  note_ = "eval " + evaluation.to_string();
  message(detail::concat("step ", step, "  ", note_, best ? "  (best)" : ""));
}

void RunRecorder::values(const std::string& tag, std::int64_t step, std::span<const float> values) {
  if (events_) {
    events_->add_histogram(tag, step, values);
    events_->add_scalar("norms/" + tag, step, norm_of(values));
  }
}

void RunRecorder::message(const std::string& text) {
  progress_.message(text);
  if (log_) {
    log_->add(text);
  } else {
    early_messages_.push_back(text);
  }
}

void RunRecorder::weights(const std::string& which, const torch::nn::Module& module) {
  std::map<std::string, std::string> notes = {{"format", "pt"}, {"model", settings_.model}};
  if (settings_.round_weights != "none" && which != "average") {
    notes["rounded"] = settings_.round_weights;  // checkpoints have the exact ones
  }
  save_weights(file(which + ".safetensors"), module, notes);
}

void RunRecorder::samples(const std::vector<std::int64_t>& samples) {
  samples_->add(Json(samples).dump());
}

void RunRecorder::keeps() {
  write_waiting();
  flush();
}

void RunRecorder::saves(std::int64_t step) {
  keeps();
  best_->keep_with(step);
}

void RunRecorder::settle() {
  metrics_->sync();
  if (samples_) {
    samples_->sync();
  }
}

void RunRecorder::flush() {
  metrics_->flush();
  log_->flush();
  if (samples_) {
    samples_->flush();
  }
  if (events_) {
    events_->flush();
  }
}

TrainResult RunRecorder::reported(TrainResult result) const {
  if (earlier_ && earlier_->steps == result.steps) {
    result.memory = earlier_->memory;
    result.tensor_bytes = earlier_->tensor_bytes;
    result.built_in_parts = earlier_->built_in_parts;
    result.processor_share = earlier_->processor_share;
    result.machines = earlier_->machines;
  }
  return result;
}

void RunRecorder::finish(const TrainResult& as_told) {
  const TrainResult result = reported(as_told);
  write_waiting();
  progress_.finish();
  if (!result.evaluation.samples.empty()) {
    std::string text =
        result.counts_tokens ? "sample,tokens,correct,loss\n" : "sample,target,prediction,loss\n";
    for (std::size_t i = 0; i < result.evaluation.samples.size(); ++i) {
      const SampleResult& each = result.evaluation.samples[i];
      text += std::to_string(i) + ',' + exact(each.target) + ',' + exact(each.prediction) + ',' +
              exact(each.loss) + '\n';
    }
    write_whole_file(file("evaluation.csv"), text);
  }
  if (const auto& confusion = result.evaluation.confusion) {
    const bool named = static_cast<std::int64_t>(class_names_.size()) == confusion->classes();
    log_->add("confusion of the last evaluation (targets down, predictions across):\n" +
              confusion->to_string(named ? class_names_ : std::vector<std::string>()));
  }
  log_->add(summary_table(settings_, result));
  write_whole_file(file("summary.json"), summary_json(settings_, result, class_names_));
  best_->forget();
  flush();
}

void RunRecorder::fail(const std::string& reason) {
  progress_.finish();
  if (!log_) {
    return;  // the folder is as it was
  }
  write_waiting();
  log_->add("failed: " + reason);
  log_->flush();
  metrics_->flush();
  // A reason may quote any bytes of a file; JSON has characters only.
  const Json summary = {{"status", "failed"}, {"reason", reason}};
  write_whole_file(file("summary.json"),
                   summary.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace trireme
