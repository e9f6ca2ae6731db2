// What DeepSpeed takes where its configuration leaves something out and Trireme would take another
// value.

#include "settings/deepspeed_items.h"
#include "trireme/settings/settings_table.h"

namespace trireme::detail {
namespace {

// Of the optimizer that a configuration names; where Trireme's own are the same, there is no line.
struct OptimizerDefault {
  const char* optimizer;
  const char* setting;
  double value;
};

constexpr OptimizerDefault kOptimizerDefaults[] = {
    {"adamw", "lr", 1e-3},
    {"adamw", "weight_decay", 0},  // of FusedAdam and DeepSpeedCPUAdam; PyTorch's has 0.01
    {"adam", "lr", 1e-3},
    {"lamb", "lr", 1e-3},
    {"lamb", "weight_decay", 0},
    {"lion", "lr", 1e-3},
    {"sgd", "lr", 1e-3},
    {"sgd", "momentum", 0},
    {"adagrad", "eps", 1e-10},
};

// PyTorch's AdamW, whose weight decay is Trireme's, instead of DeepSpeed's.
bool is_torch_adam(const Json& configuration) {
  const Json params = configuration.at("optimizer").value("params", Json::object());
  return params.is_object() && params.value("torch_adam", Json(false)) == Json(true);
}

}  // namespace

void apply_deepspeed_defaults(TrainSettings& settings,
                              const Json& configuration,
                              const DeepspeedNotes& notes) {
  const auto has = [&](const char* name) { return configuration.contains(name); };
  const auto is_left_out = [&](const std::string& name) {
    return notes.named.count(name) == 0 && notes.set_by.count(name) == 0 &&
           notes.own.count(name) == 0 && notes.flags.count(name) == 0;
  };
  const auto fall_back = [&](const char* name, const Json& value) {
    if (is_left_out(name)) {
      find_setting(name)->set_json(settings, value.dump());
    }
  };
  const bool names_optimizer = has("optimizer") && configuration.at("optimizer").is_object();
  const bool names_batch = has("train_batch_size") || has("train_micro_batch_size_per_gpu") ||
                           has("gradient_accumulation_steps");
  if (names_optimizer && notes.flags.count("optimizer") == 0) {
    for (const OptimizerDefault& each : kOptimizerDefaults) {
      const bool as_here =
          std::string(each.setting) == "weight_decay" && is_torch_adam(configuration);
      if (settings.optimizer == each.optimizer && !as_here) {
        fall_back(each.setting, each.value);
      }
    }
  }
  if (names_optimizer) {
    fall_back("schedule", "constant");
  }
  if (names_optimizer || names_batch) {
    fall_back("clip_norm", 0);
  }
  // The batch is then as large as the micro-batches of all ranks. A run that is resumed has its
  // batch, which another number of ranks does not change.
  if (notes.set_by.count("micro_batch") > 0 && notes.flags.count("micro_batch") == 0 &&
      is_left_out("batch") && settings.batch == 0) {
    fall_back("accumulate", 1);
  }
}

}  // namespace trireme::detail
