#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/data/dataset.h"
#include "trireme/settings/train_settings.h"

namespace trireme {

// A built-in model as the settings know it, without LibTorch. How it is built is said under the
// same name in models/model_table.cc.
struct ModelKind {
  const char* name;
  const char* what;     // for --help and the documentation
  const char* command;  // of the program, that a trained one answers: "predict", "sample"; or none
  SampleKind samples;   // that it learns from
  std::int64_t most_micro_batch;      // with micro_batch = fixed
  std::vector<std::string> settings;  // that it has, of those that not every model has
  // What settings are that are not given. (Those of text follow from its size.)
  TrainSettings defaults;
  bool needs_images = false;
  void (*check)(const TrainSettings& settings) = nullptr;  // throws ConfigError
};

// In the order of the documentation. The last one, without a name, is a model of the user's own.
const std::vector<ModelKind>& model_kinds();
// That of a built-in model; of any other name, the last one.
const ModelKind& model_kind(const std::string& name);
std::vector<std::string> model_names();  // of the built-in models
// Those that take samples like these, for messages: "mlp or convnet".
std::string models_on(SampleKind samples, bool images = true);
// Those that this command of the program takes when they are trained: "mlp, convnet or wide".
std::string models_for(const std::string& command);

// Takes those of these settings from `defaults` that are not given.
template <class... T>
void fill_in(TrainSettings& settings,
             const TrainSettings& defaults,
             T TrainSettings::*... members) {
  const TrainSettings unset;
  const auto fill = [&](auto member) {
    if (settings.*member == unset.*member) {
      settings.*member = defaults.*member;
    }
  };
  (fill(members), ...);
}

// What a size of a transformer stands for.
struct TextModelSize {
  std::int64_t layers, width, heads, sequence;
  std::int64_t evaluated_tokens;  // at a time: a large vocabulary has large scores for every token
};
const TextModelSize& text_model_size(TextSize size);

// Layers, width, heads and sequence of a transformer that are not given, from its size; of other
// models, from their own defaults.
void fill_in_size(TrainSettings& settings);
// The other way round: those that are what the size says are not given any more, so that another
// size says something else.
void leave_out_size(TrainSettings& settings);

}  // namespace trireme
