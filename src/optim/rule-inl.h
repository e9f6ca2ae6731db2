// The members of OptimizerOf<Options>, for the file of the rule, which instantiates them.
#pragma once

#include <algorithm>
#include <type_traits>

#include "optim/rule.h"

namespace trireme {
namespace detail {

template <class Options>
double value_of(const Options& options, const Field<Options>& field) {
  return std::visit([&](auto member) { return static_cast<double>(options.*member); },
                    field.member);
}

}  // namespace detail

template <class Options>
OptimizerOf<Options>::OptimizerOf(const Options& options) : options_(options) {
  const auto& definition = detail::definition_of<Options>();
  for (const auto& field : definition.fields) {
    detail::check_bound(definition.name, field.name, field.bound, detail::value_of(options, field));
  }
  if (definition.check != nullptr) {
    definition.check(options);
  }
}

template <class Options>
std::string OptimizerOf<Options>::name() const {
  return detail::definition_of<Options>().name;
}

template <class Options>
std::vector<std::pair<std::string, double>> OptimizerOf<Options>::values() const {
  std::vector<std::pair<std::string, double>> all;
  for (const auto& field : detail::definition_of<Options>().fields) {
    all.emplace_back(field.name, detail::value_of(options_, field));
  }
  return all;
}

template <class Options>
std::set<std::string> OptimizerOf<Options>::switches() const {
  std::set<std::string> all;
  for (const auto& field : detail::definition_of<Options>().fields) {
    if (std::holds_alternative<bool Options::*>(field.member)) {
      all.insert(field.name);
    }
  }
  return all;
}

template <class Options>
std::vector<OptimizerState> OptimizerOf<Options>::states(const ParameterInfo& parameter) const {
  return detail::definition_of<Options>().states(options_, parameter);
}

template <class Options>
bool OptimizerOf<Options>::takes_whole_parameters() const {
  return detail::definition_of<Options>().takes_whole_parameters;
}

template <class Options>
bool OptimizerOf<Options>::updates_rows() const {
  const auto& definition = detail::definition_of<Options>();
  return definition.passes == nullptr && !definition.takes_whole_parameters;
}

template <class Options>
bool OptimizerOf<Options>::leaves_untouched() const {
  const auto leaves = detail::definition_of<Options>().leaves_untouched;
  return leaves != nullptr && leaves(options_);
}

template <class Options>
std::vector<OptimizerPass> OptimizerOf<Options>::passes() const {
  const auto passes = detail::definition_of<Options>().passes;
  return passes != nullptr ? passes(options_) : std::vector<OptimizerPass>();
}

template <class Options>
void OptimizerOf<Options>::update(const ParameterSlice& slice,
                                  const GradientTransform& transform,
                                  double learning_rate) const {
  const auto& definition = detail::definition_of<Options>();
  if (definition.passes != nullptr && slice.whole == nullptr) {
    detail::update_whole(*this, slice, transform, [&](const ParameterSlice& known) {
      update(known, transform, learning_rate);
    });
    return;
  }
  detail::check_slice(*this, slice);
  definition.update(options_, slice, transform, learning_rate);
}

template <class Options>
void OptimizerOf<Options>::finish(WholeParameter& whole) const {
  const auto finish = detail::definition_of<Options>().finish;
  if (finish != nullptr) {
    finish(options_, whole);
  }
}

template <class Options>
std::unique_ptr<Optimizer> OptimizerOf<Options>::with(
    const std::map<std::string, double>& changes) const {
  const auto& definition = detail::definition_of<Options>();
  Options changed = options_;
  for (const auto& [name, value] : changes) {
    const auto field = std::ranges::find_if(
        definition.fields, [&its = name](const auto& each) { return its == each.name; });
    if (field == definition.fields.end()) {
      detail::refuse_setting(*this, name);
    }
    std::visit(
        [&, &to = value](auto member) {
          using Value = std::remove_reference_t<decltype(changed.*member)>;
          if (std::is_same_v<Value, bool>) {
            detail::check_switch(definition.name, field->name, to);
          }
          changed.*member = static_cast<Value>(to);
        },
        field->member);
  }
  return std::make_unique<OptimizerOf>(changed);
}

}  // namespace trireme
