#include "same_work.h"

#include <algorithm>
#include <string_view>

#include "trireme/core/error.h"

namespace trireme::tools {
namespace {

// Names between spaces.

constexpr std::string_view kSettingsOfManner =
    " accumulate balance bucket_bytes compress_check data_threads device histogram_every "
    "memory_limit micro_batch offload "
    "placement ranks record_samples recompute save_every speeds snapshot_limit sum_order "
    "tensorboard threads unit_bytes zero ";

constexpr std::string_view kSettingsOfNoEffect =
    " allow_changes best beta1 beta2 class_weights decay_all early_stop epochs eps eval_batch "
    "eval_data eval_every eval_fraction final_factor folds gamma goal half_period initialisation "
    "keep_every keep_last log_every loss_scale_initial loss_scale_window low_factor lr "
    "lr_scaling milestones outer_lr outer_momentum outer_nesterov partition plateau_patience "
    "replay rise run sampling save_initial "
    "save_weights schedule schedule_steps seed shares start_factor started_in step_every steps "
    "straggler_factor stride timeout warm_up weight_decay weights_from weights_partial ";

// How the data is found and read. What comes of it may be the same nevertheless.
constexpr std::string_view kNamesOfData = " data eval_data format header separator ";

// What is predicted, from what.
constexpr std::string_view kQuestion = " data eval_data regression target vocabulary ";

bool is_among(std::string_view names, const std::string& name) {
  return names.find(" " + name + " ") != std::string_view::npos;
}

std::string value_shown(const std::string& value) {
  constexpr std::size_t kLongest = 40;
  return value.empty()              ? "none"
         : value.size() <= kLongest ? value
                                    : "..." + value.substr(value.size() - kLongest);
}

template <class Counts>
Reasons reasons_among(const std::vector<ComparedSetting>& differing, Counts counts) {
  Reasons reasons;
  for (const ComparedSetting& setting : differing) {
    if (counts(setting)) {
      reasons.push_back(detail::concat(
          setting.name, ": ", value_shown(setting.a), " and ", value_shown(setting.b)));
    }
  }
  // The model comes first: most of what follows it follows from it.
  std::stable_partition(reasons.begin(), reasons.end(), [](const std::string& reason) {
    return reason.starts_with("model: ");
  });
  return reasons;
}

}  // namespace

Effect effect_on_speed(const std::string& setting) {
  return is_among(kSettingsOfManner, setting)     ? Effect::kManner
         : is_among(kSettingsOfNoEffect, setting) ? Effect::kNone
                                                  : Effect::kWork;
}

Reasons other_work(const std::vector<ComparedSetting>& differing, bool same_data) {
  return reasons_among(differing, [&](const ComparedSetting& setting) {
    return effect_on_speed(setting.name) == Effect::kWork &&
           !(same_data && is_among(kNamesOfData, setting.name));
  });
}

Reasons more_than_ranks(const std::vector<ComparedSetting>& differing, bool same_data) {
  return reasons_among(differing, [&](const ComparedSetting& setting) {
    return setting.name != "ranks" && effect_on_speed(setting.name) != Effect::kNone &&
           !(same_data && is_among(kNamesOfData, setting.name));
  });
}

Reasons other_question(const std::vector<ComparedSetting>& differing) {
  return reasons_among(differing, [](const ComparedSetting& setting) {
    // A bert predicts what is masked; all other models of the same data predict the same.
    const bool other_task = setting.name == "model" && (setting.a == "bert" || setting.b == "bert");
    return other_task || is_among(kQuestion, setting.name);
  });
}

std::string reasons_text(const Reasons& reasons) {
  constexpr std::size_t kMost = 4;  // one line of them says enough: all settings are shown anyway
  std::string text;
  for (std::size_t i = 0; i < std::min(kMost, reasons.size()); ++i) {
    text += (i == 0 ? "different " : "; ") + reasons[i];
  }
  return reasons.size() <= kMost ? text
                                 : detail::concat(text, "; and ", reasons.size() - kMost, " more");
}

}  // namespace trireme::tools
