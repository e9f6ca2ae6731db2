#include "trireme/settings/unused.h"

#include <algorithm>
#include <vector>

#include <nlohmann/json.hpp>

#include "trireme/core/counted.h"
#include "trireme/core/error.h"
#include "trireme/optim/optimizer.h"
#include "trireme/settings/model_kinds.h"
#include "trireme/settings/settings_table.h"
#include "trireme/settings/values.h"

namespace trireme {
namespace {

using detail::concat;
using detail::enumerated;
using S = TrainSettings;
using Names = std::vector<std::string>;

// A setting whose value decides which others count: for each value those that it uses, of those
// that not all values do.
struct Choice {
  std::string name;
  std::vector<std::pair<std::string, Names>> uses;
};

Choice choice_of_model() {
  Choice choice{"model", {}};
  for (const std::string& name : model_names()) {
    choice.uses.emplace_back(name, model_kind(name).settings);
  }
  return choice;
}

Choice choice_of_optimizer() {
  Choice choice{"optimizer", {}};
  for (const RuleInfo& rule : optimizer_rules()) {
    Names names;
    for (const auto& [name, usual] : rule.settings) {
      names.push_back(name);
    }
    choice.uses.emplace_back(rule.name, std::move(names));
  }
  return choice;
}

const std::vector<Choice>& choices() {
  static const std::vector<Choice> all = {
      choice_of_model(),
      choice_of_optimizer(),
      {"schedule",
       {{"constant", {}},
        {"cosine", {"final_factor", "schedule_steps"}},
        {"linear", {"final_factor", "schedule_steps"}},
        {"step", {"step_every", "gamma"}},
        {"multi_step", {"milestones", "gamma"}},
        {"one_cycle", {"schedule_steps", "rise", "start_factor"}},
        {"cyclic", {"half_period", "low_factor"}},
        {"plateau", {"gamma", "plateau_patience"}}}},
      {"format",
       {{"csv",
         {"target",
          "header",
          "separator",
          "regression",
          "categorical",
          "unseen",
          "missing",
          "missing_values"}},
        {"libsvm", {"regression"}},
        {"idx", {"shift", "flip"}},
        {"text", {}},
        {"tokens16", {}},
        {"tokens32", {}}}},
      {"precision",
       {{"float16", {"loss_scale_initial", "loss_scale_window"}},
        {"float32", {}},
        {"bfloat16", {}},
        {"autocast", {}}}},
      {"partition", {{"hash", {"shares"}}, {"uniform", {}}}},
      {"sync",
       {{"exact", {}},
        {"local", {"sync_every", "sync_group", "sync_schedule", "sync_states"}},
        {"diloco",
         {"sync_every",
          "sync_group",
          "sync_schedule",
          "sync_states",
          "outer_lr",
          "outer_momentum",
          "outer_nesterov"}},
        {"gossip", {"sync_every", "sync_group", "sync_schedule", "sync_states", "sync_graph"}},
        {"stale", {"staleness", "order", "servers", "replay"}},
        {"async", {"servers", "replay"}},
        {"auto", {"sync_every", "sync_group", "sync_schedule", "sync_states", "sync_window"}}}},
  };
  return all;
}

std::string why_not_by(const Choice& choice, const std::string& setting, const S& settings) {
  const std::string chosen = value_text(choice.name, settings);
  Names users;
  bool known = false;
  bool used = false;
  for (const auto& [value, names] : choice.uses) {
    const bool uses = std::find(names.begin(), names.end(), setting) != names.end();
    known = known || value == chosen;
    used = used || (uses && value == chosen);
    if (uses) {
      users.push_back(value);
    }
  }
  if (users.empty() || !known || used) {
    return "";
  }
  // A model of text takes none of the data that would use it.
  const bool other_data =
      choice.name == "format" && model_kind(settings.model).samples != SampleKind::kTokens;
  return concat("the {} {} does not use it, but {}{}: leave it out, or choose {}",
                {choice.name,
                 chosen,
                 enumerated(users),
                 users.size() > 1 ? " do" : " does",
                 other_data                ? "other --data"
                 : choice.name == "format" ? "another --model"
                                           : concat("another --", choice.name)});
}

// What others decide.
std::string why_not_beside_others(const std::string& setting, const S& s) {
  struct Rule {
    Names settings;
    bool unused;
    std::string why;
  };
  const Rule rules[] = {
      {{"epochs"},
       s.steps > 0,
       concat("steps is ", s.steps, ", which decides: leave one of them out (--steps 0)")},
      {{"eval_fraction"},
       s.eval_fraction > 0 && (s.folds > 0 || !s.eval_data.empty()),
       concat(s.folds > 0 ? "--folds" : "--eval-data", " says what is evaluated on: leave it out")},
      {{"keep_last", "keep_every", "snapshot_limit"},
       s.save_every == 0,
       "no checkpoints are saved: leave it out, or add --save-every N"},
      {{"prune_begin", "prune_end", "prune_every"},
       s.prune == 0,
       "nothing is pruned: leave it out, or add --prune FRACTION"},
      {{"histogram_every"},
       !s.tensorboard,
       "histograms are for TensorBoard's file, which is off: leave it out, or --tensorboard"},
  };
  for (const Rule& rule : rules) {
    if (rule.unused &&
        std::find(rule.settings.begin(), rule.settings.end(), setting) != rule.settings.end()) {
      return rule.why;
    }
  }
  return "";
}

}  // namespace

std::string why_unused(const std::string& setting, const TrainSettings& settings) {
  for (const Choice& choice : choices()) {
    if (std::string why = why_not_by(choice, setting, settings); !why.empty()) {
      return why;
    }
  }
  return why_not_beside_others(setting, settings);
}

std::string used_settings_json(TrainSettings settings, const std::string& format) {
  if (settings.steps > 0) {
    settings.warm_up = warm_up_steps(settings, settings.steps);
  }
  TrainSettings known = settings;
  known.format = format;
  nlohmann::ordered_json json;
  for (const Setting& setting : settings_table()) {
    const bool follows = setting.name == "warm_up" && settings.warm_up < 0;
    if (!follows && why_unused(setting.name, known).empty()) {
      json[setting.name] = nlohmann::ordered_json::parse(setting.to_json(settings));
    }
  }
  return json.dump(2);
}

}  // namespace trireme
