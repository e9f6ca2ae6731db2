#include "trireme/optim/parameter_groups.h"

#include <algorithm>

#include <fnmatch.h>

#include "trireme/core/error.h"

namespace trireme {
namespace {

std::map<std::string, double> changes_of(const GroupOptions& options) {
  std::map<std::string, double> changes;
  const auto take = [&](const char* name, const std::optional<double>& value) {
    if (value) {
      changes[name] = *value;
    }
  };
  take("lr", options.lr);
  take("weight_decay", options.weight_decay);
  take("beta1", options.beta1);
  take("beta2", options.beta2);
  return changes;
}

}  // namespace

Selection biases_and_norms() {
  return {"biases and norms", [](const ParameterInfo& p) { return p.sizes.size() < 2; }};
}

Selection named(std::vector<std::string> patterns) {
  return {detail::listed(patterns),
          [patterns = std::move(patterns)](const ParameterInfo& parameter) {
            return std::ranges::any_of(patterns, [&](const std::string& pattern) {
              return fnmatch(pattern.c_str(), parameter.name.c_str(), FNM_NOESCAPE) == 0;
            });
          },
          /*required=*/true};
}

ParameterGroups::ParameterGroups(const Optimizer& rule, const std::vector<ParameterGroup>& groups)
    : rule_(rule.clone()) {
  for (const ParameterGroup& group : groups) {
    try {
      groups_.push_back(
          {group.parameters,
           group.rule ? group.rule
                      : std::shared_ptr<const Optimizer>(rule_->with(changes_of(group.options)))});
    } catch (const ConfigError& error) {
      throw ConfigError(
          detail::concat("parameter group (", group.parameters.text(), "): ", error.what()));
    }
    const double rate = groups_.back().rule->learning_rate();
    TRIREME_CHECK(rule_->learning_rate() > 0 || rate == rule_->learning_rate(),
                  "parameter group ({}): its learning rate {} is in no proportion to that of the "
                  "others, which is 0: give them one above 0",
                  {group.parameters.text(), rate});
  }
}

const Optimizer& ParameterGroups::rule_of(const ParameterInfo& parameter) const {
  for (const Group& group : groups_) {
    if (group.parameters.contains(parameter)) {
      return *group.rule;
    }
  }
  return *rule_;
}

std::string ParameterGroups::name() const {
  std::string all = rule_->name();
  std::vector<std::string> seen = {all};
  for (const Group& group : groups_) {
    const std::string name = group.rule->name();
    if (std::ranges::find(seen, name) == seen.end()) {
      seen.push_back(name);
      all += "+" + name;
    }
  }
  return all;
}

std::string ParameterGroups::settings() const {
  std::string text = rule_->settings();
  for (const Group& group : groups_) {
    text +=
        "; " + group.parameters.text() + ": " + group.rule->name() + ", " + group.rule->settings();
  }
  return text;
}

std::vector<OptimizerState> ParameterGroups::states(const ParameterInfo& parameter) const {
  return rule_of(parameter).states(parameter);
}

bool ParameterGroups::takes_whole_parameters() const {
  return rule_->takes_whole_parameters() || std::ranges::any_of(groups_, [](const Group& group) {
           return group.rule->takes_whole_parameters();
         });
}

std::vector<const Optimizer*> ParameterGroups::assign(
    const std::vector<ParameterInfo>& parameters) const {
  for (const Group& group : groups_) {
    TRIREME_CHECK(!group.parameters.required() ||
                      std::ranges::any_of(parameters,
                                          [&](const ParameterInfo& parameter) {
                                            return group.parameters.contains(parameter);
                                          }),
                  "parameter group ({}): the model has no parameter of that name; its first is {} "
                  "(* stands for anything)",
                  {group.parameters.text(), parameters.empty() ? "none" : parameters.front().name});
  }
  // Where a rule has groups itself, what it says in turn.
  std::vector<const Optimizer*> rules = rule_->assign(parameters);
  for (auto group = groups_.rbegin(); group != groups_.rend(); ++group) {
    const std::vector<const Optimizer*> its = group->rule->assign(parameters);
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      rules[p] = group->parameters.contains(parameters[p]) ? its[p] : rules[p];
    }
  }
  return rules;
}

void ParameterGroups::update(const ParameterSlice& slice,
                             const GradientTransform& transform,
                             double learning_rate) const {
  const Optimizer& rule = slice.whole != nullptr ? rule_of(slice.whole->info) : *rule_;
  rule.update(slice, transform, learning_rate);
}

ParameterGroups without_decay(const Optimizer& rule, const Selection& parameters) {
  return {rule, {{parameters, GroupOptions{.weight_decay = 0}}}};
}

}  // namespace trireme
