#pragma once

#include <variant>

#include "trireme/optim/optimizer.h"

// What the file of a rule says about it (src/optim/rules/), and all that there is to say.

namespace trireme::detail {

enum class Bound {
  kNotNegative,
  kNotPositive,
  kPositive,
  kBeta,       // from 0 to below 1
  kAnyNumber,  // that is finite
};

// A setting: its name everywhere (flags, JSON, messages, groups), and which values make sense.
template <class Options>
struct Field {
  const char* name;
  std::variant<double Options::*, bool Options::*> member;
  Bound bound = Bound::kNotNegative;
};

template <class Options>
struct Definition {
  const char* name;
  std::vector<Field<Options>> fields;  // all of them
  std::vector<OptimizerState> (*states)(const Options& options, const ParameterInfo& parameter);
  void (*update)(const Options& options,
                 const ParameterSlice& slice,
                 const GradientTransform& transform,
                 double learning_rate);
  // What may be left out: settings that do not go together (throws ConfigError), ...
  void (*check)(const Options& options) = nullptr;
  // ... and what Optimizer says about these.
  std::vector<OptimizerPass> (*passes)(const Options& options) = nullptr;
  void (*finish)(const Options& options, WholeParameter& whole) = nullptr;
  bool takes_whole_parameters = false;
  bool (*leaves_untouched)(const Options& options) = nullptr;
};

// Specialised by the rule's file.
template <class Options>
const Definition<Options>& definition_of();

// Throws ConfigError for a value outside.
void check_bound(const char* rule, const char* name, Bound bound, double value);
// Throws ConfigError for a value of a switch that is neither 0 nor 1.
void check_switch(const char* rule, const char* name, double value);
// Throws ConfigError unless the slice has what the rule needs.
void check_slice(const Optimizer& rule, const ParameterSlice& slice);
// Throws ConfigError: the rule has no setting of this name.
[[noreturn]] void refuse_setting(const Optimizer& rule, const std::string& name);

// For a rule with passes and a slice that is a whole parameter: takes them, then calls `update`
// with a slice that knows the result, then `finish`.
void update_whole(const Optimizer& rule,
                  const ParameterSlice& slice,
                  const GradientTransform& transform,
                  const std::function<void(const ParameterSlice&)>& update);

}  // namespace trireme::detail
