#include <algorithm>
#include <cstdio>
#include <filesystem>

#include <CLI/CLI.hpp>

#include <ATen/Parallel.h>
#include <torch/types.h>

#include "arguments.h"
#include "prediction_output.h"
#include "trained_run.h"
#include "trireme/checkpoint/checkpoint_folder.h"
#include "trireme/comm/world.h"
#include "trireme/core/counted.h"
#include "trireme/core/error.h"
#include "trireme/core/output_file.h"
#include "trireme/core/shell_text.h"
#include "trireme/data/source.h"
#include "trireme/launch/launcher.h"
#include "trireme/settings/model_kinds.h"
#include "trireme/settings/run_folder.h"
#include "trireme/settings/settings_table.h"
#include "trireme/train/evaluation.h"
#include "trireme/train/preprocessing_file.h"
#include "trireme/train/run_recorder.h"
#include "worker.h"

namespace trireme::worker {
namespace {

namespace fs = std::filesystem;
using detail::concat;
using detail::counted;
using detail::shell_text;
using Targets = NewDataOptions::Targets;
using Header = CsvOptions::Header;

struct PredictOptions {
  std::string run;
  std::string data;
  std::string weights = "auto";
  std::string format = "csv";
  std::string output;
  std::string targets = "auto";
  std::string header = "auto";
  std::string device = "auto";
};

void say(const std::string& text) {
  std::fprintf(stderr, "trireme: %s\n", text.c_str());
}

TrainSettings settings_in(const std::string& run) {
  TRIREME_CHECK(is_run_folder(run), "RUN: \"", run, "\": ", expected_run_folder(run));
  TrainSettings settings = settings_to_use(run);
  TRIREME_CHECK(
      model_kind(settings.model).command == std::string("predict"),
      "\"{}\" holds a {}, {}: {}",
      {run, settings.model, model_kind(settings.model).what, what_answers(run, settings)});
  return settings;
}

Preprocessing preprocessing_in(const std::string& run) {
  const std::string path = concat(run, "/", kPreprocessingFile);
  if (!fs::exists(path)) {
    check_no_folds(run);
  }
  TRIREME_CHECK(
      fs::exists(path),
      "expected \"{}\", which has the columns, categories and statistics of the training data, "
      "found none: the run has not begun to train, or the file was removed. Train again (trireme "
      "train --config {} --run NEW){}",
      {path,
       shell_text({run + "/config.json"}),
       fs::exists(concat(run, "/", kCheckpointsFolder))
           ? concat(", or have them written from the same data (trireme train --resume {})",
                    {shell_text({run})})
           : ""});
  return read_preprocessing(path);
}

std::vector<std::string> class_names(const Preprocessing& preprocessing) {
  if (!preprocessing.classes.empty()) {
    return preprocessing.classes;
  }
  std::vector<std::string> numbers;
  for (std::int64_t i = 0; i < preprocessing.shape.classes; ++i) {
    numbers.push_back(std::to_string(i));
  }
  return numbers;
}

// Writes samples as their scores come, which is in their order.
class Writer {
 public:
  Writer(const PredictionFacts& facts,
         const NewData& opened,
         const std::string& format,
         OutputFile& output)
      : facts_(facts), opened_(opened), output_(output), format_(prediction_format(format, facts)) {
    output_.write(format_->begin());
  }

  void add(std::int64_t first, const at::Tensor& scores) {
    const bool classifies = !facts_.classes.empty();
    const auto each = static_cast<std::int64_t>(std::max<std::size_t>(1, facts_.classes.size()));
    // In double, so that probabilities are right to the last digit that is written.
    const at::Tensor values =
        (classifies ? scores.to(at::kDouble).softmax(1) : scores).to(at::kFloat).contiguous();
    const at::Tensor best = classifies ? scores.to(at::kFloat).argmax(1) : at::Tensor();
    const std::int64_t count = values.numel() / each;
    const at::Tensor finite = scores.isfinite().reshape({count, each}).all(1);
    if (facts_.has_targets) {
      read_targets(first, count);
    }
    std::string text;
    for (std::int64_t i = 0; i < count; ++i) {
      const float* at = values.const_data_ptr<float>() + i * each;
      PredictedSample sample;
      sample.row = row_of(first + i);
      sample.has_prediction = finite.const_data_ptr<bool>()[i];
      if (!sample.has_prediction && without_++ == 0) {
        first_without_ = sample.row;
      }
      if (classifies) {
        sample.prediction = name(best.const_data_ptr<std::int64_t>()[i]);
        sample.probabilities = {at, facts_.classes.size()};
      } else {
        sample.prediction = number_text(*at);
      }
      if (facts_.has_targets) {
        const auto index = static_cast<std::size_t>(i);
        sample.target =
            classifies ? name(batch_.labels[index]) : number_text(batch_.targets[index]);
      }
      text += format_->sample(sample);
    }
    output_.write(text);
  }

  void finish(const Evaluation& evaluation) {
    output_.write(
        format_->end(facts_.has_targets ? std::optional(evaluation.metrics) : std::nullopt));
    output_.finish();
  }

  // Of rows whose scores are no numbers; empty: there are none.
  std::string what_is_missing() const {
    return without_ == 0 ? ""
                         : concat(
                               "{} without a prediction, {}row {}: the model's scores for {} "
                               "are not numbers, as where values are beyond what it can "
                               "compute with",
                               {counted(without_, "row"),
                                without_ == 1 ? "" : "the first is ",
                                first_without_,
                                without_ == 1 ? "it" : "them"});
  }

 private:
  const std::string& name(std::int64_t label) const {
    return facts_.classes[static_cast<std::size_t>(label)];
  }

  void read_targets(std::int64_t first, std::int64_t count) {
    std::vector<std::int64_t> samples;
    for (std::int64_t i = 0; i < count; ++i) {
      samples.push_back(first + i);
    }
    opened_.data->read(samples, batch_);
  }

  // Samples come in the order of the rows; those that were dropped are passed over.
  std::int64_t row_of(std::int64_t sample) {
    while (passed_ < opened_.dropped.size() &&
           opened_.dropped[passed_] <= sample + static_cast<std::int64_t>(passed_)) {
      ++passed_;
    }
    return sample + static_cast<std::int64_t>(passed_);
  }

  PredictionFacts facts_;
  const NewData& opened_;
  OutputFile& output_;
  std::unique_ptr<PredictionFormat> format_;
  Batch batch_;
  std::size_t passed_ = 0;
  std::int64_t without_ = 0;  // rows that have no prediction
  std::int64_t first_without_ = 0;
};

// What is refused is told with flags of trireme train, where a model still takes what it is told.
// This one does not: what can be done about the file, and how to train one that does.
std::string what_to_do(const std::string& refusal,
                       const Preprocessing& preprocessing,
                       const std::string& run) {
  const auto names = [&](const char* flag) { return refusal.find(flag) != std::string::npos; };
  const auto train = [&](const char* flags) {
    return concat("trireme train --config {} {} --run NEW",
                  {shell_text({run + "/config.json"}), flags});
  };
  const bool takes_holes = preprocessing.missing == CsvOptions::Missing::kNan ||
                           preprocessing.missing == CsvOptions::Missing::kZero;
  std::string advice;
  if (names("--unseen")) {
    advice += concat(
        "\nWhat to do about categories that the training file did not have: correct those that are "
        "misspelt; {}; or train a model that ignores them: {}",
        {takes_holes
             ? "empty the cells of the others (this model takes an empty cell for a category "
               "that is missing)"
             : "take the rows of the others out of the file",
         train("--unseen ignore")});
  }
  if (names("--missing mean")) {
    advice += concat(
        "\nWhat to do about values that are missing: fill them in, or take their rows out of the "
        "file; or train a model that takes them: ",
        train("--missing mean"));
  } else if (names("--missing-values")) {
    advice +=
        "\nWhat this model takes for missing was decided when it was trained: empty the cells, or "
        "fill them in";
  } else if (names("expected a class of the training file")) {
    advice += "\n--targets no predicts without looking at the targets";
  }
  if (names("--categorical")) {
    advice +=
        "\nThe training file has numbers in this column: correct the cells, or take their rows out "
        "of the file";
  }
  return advice;
}

// Of the first line, where it was said to be a row.
std::string about_header(const std::string& refusal, const PredictOptions& options) {
  const bool of_first_line = refusal.find(options.data + ":1:") != std::string::npos ||
                             refusal.find(": line 1, ") != std::string::npos;
  return options.header == "no" && of_first_line ? "\nThe first line is read as a row because of "
                                                   "--header no: if it has the names of the "
                                                   "columns, leave that out"
                                                 : "";
}

NewData open_file(const Preprocessing& preprocessing, const PredictOptions& options) {
  NewDataOptions how;
  how.targets = options.targets == "yes"  ? Targets::kYes
                : options.targets == "no" ? Targets::kNo
                                          : Targets::kAutomatic;
  how.header = options.header == "yes"  ? Header::kYes
               : options.header == "no" ? Header::kNo
                                        : Header::kAutomatic;
  try {
    return open_new_data(preprocessing, options.data, how);
  } catch (const DataError& error) {
    const std::string text = error.what();
    // As what was wrong with the call: the same again would end in the same way.
    throw ConfigError(text + what_to_do(text, preprocessing, options.run) +
                      about_header(text, options));
  } catch (const ConfigError& error) {
    throw ConfigError(with_flags(error.what(), {"data", "header"}));
  }
}

// What is predicted would take the place of what it is predicted from.
void refuse_to_replace_data(const PredictOptions& options) {
  for (const std::string& file : files_of_new_data(options.data)) {
    std::error_code ignored;  // one that is not there is no other file, either
    TRIREME_CHECK(options.output.empty() || !fs::equivalent(options.output, file, ignored),
                  "--output: expected a file of its own, found \"{}\", which is \"{}\" that "
                  "--data reads, and would be replaced: choose another name",
                  {options.output, file});
  }
}

int run_prediction(const PredictOptions& options) {
  const TrainSettings settings = settings_in(options.run);
  const Preprocessing preprocessing = preprocessing_in(options.run);
  refuse_to_replace_data(options);
  OutputFile output(options.output, "--output");  // before anything takes time
  TRIREME_CHECK(data_is_there(options.data),
                "--data: expected a file or folder like the one that was trained on, found nothing "
                "with the name \"{}\"",
                {options.data});
  const at::Device device = device_to_use(settings, options.device);
  const Trainable model = make_model(settings, preprocessing.shape);
  PredictionFacts facts;
  facts.run = options.run;
  const RunWeights weights = weights_in(options.run, options.weights);
  weights.load(*model.module);
  model.module->to(device);
  if (!weights.note.empty()) {
    say(weights.note);
  }
  facts.weights = weights.path;
  facts.data = options.data;
  facts.classes = class_names(preprocessing);
  const NewData opened = open_file(preprocessing, options);
  facts.has_targets = opened.has_targets;
  for (const std::string& note : opened.notes) {
    say(note);
  }
  if (!opened.dropped.empty()) {
    say(concat(opened.dropped.size(),
               opened.dropped.size() == 1
                   ? " row in which something is missing is left out (its"
                   : " rows in which something is missing are left out (their",
               " number is not in the output)"));
  }
  if (settings.precision != TrainPrecision::kFloat32) {
    say(concat("the run was trained in ",
               value_text("precision", settings),
               ", and this is computed in float32: results may differ a little from the run's "
               "own evaluation"));
  }
  // As many as in training: then, on the same device, these are the bits of the run's own
  // evaluation.
  at::set_num_threads(static_cast<int>(settings.threads));
  const auto alone = init();
  Writer writer(facts, opened, options.format, output);
  const Evaluation evaluation = evaluate(
      model,
      Task(preprocessing.shape),
      *opened.data,
      {.batch = settings.eval_batch,
       .scores = [&](std::int64_t first, const at::Tensor& scores) { writer.add(first, scores); }},
      *alone);
  writer.finish(evaluation);
  if (const std::string missing = writer.what_is_missing(); !missing.empty()) {
    say(missing);
  }
  if (opened.has_targets) {
    say(concat(counted(evaluation.evaluated, "sample"), ": ", evaluation.to_string()));
  }
  return kExitOk;
}

}  // namespace

int predict(const std::vector<std::string>& arguments) {
  PredictOptions options;
  CLI::App app(
      concat("Predicts with a trained ",
             models_for("predict"),
             " model. One line for each row of the data: the predicted class by its name and the "
             "probability of each class, or the predicted number. The data is treated as the "
             "training data was: columns, categories, missing values and normalisation are those "
             "of the run. Where the data has targets, metrics are printed to standard error (and "
             "are in the JSON)."),
      "trireme predict");
  app.add_option("RUN,--run", options.run, "The folder of the run")->required()->type_name("RUN");
  app.add_option("--data",
                 options.data,
                 "A file like the one that was trained on, with or without targets; of images also "
                 "a folder with MNIST's files")
      ->required()
      ->type_name("FILE");
  app.add_option("--format", options.format, "csv or json (default: csv)")
      ->check(CLI::IsMember({"csv", "json"}))
      ->type_name("FORMAT");
  app.add_option(
         "--output",
         options.output,
         "Write to this file, which appears only when it is complete, instead of standard output "
         "(-); a pipe or a device is written to directly")
      ->type_name("FILE");
  app.add_option("--weights",
                 options.weights,
                 "model (the last ones), best, average or checkpoint (the newest); default: model; "
                 "for an unfinished run, checkpoint")
      ->check(CLI::IsMember(names_of_weights()))
      ->type_name("WHICH");
  app.add_option(
         "--targets",
         options.targets,
         "yes: the data has targets; no: it has none, or they are ignored; auto: decided by "
         "the number of columns, or by whether there is a file of labels (default: auto)")
      ->check(CLI::IsMember({"auto", "yes", "no"}))
      ->type_name("WHETHER");
  app.add_option(
         "--header",
         options.header,
         "yes: the first line of a CSV file has the names of its columns; no: it is a row; auto: "
         "it has names if they are those of the training file, or if a word is in a column "
         "of numbers (default: auto)")
      ->check(CLI::IsMember({"auto", "yes", "no"}))
      ->type_name("WHETHER");
  app.add_option("--device", options.device, kDeviceHelp)
      ->check(CLI::IsMember(names_of_devices()))
      ->type_name("WHERE");
  const auto exit_code = exit_after(app, arguments);
  return exit_code ? *exit_code : run_prediction(options);
}

}  // namespace trireme::worker
