#pragma once

#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/optim/optimizer.h"

namespace trireme {

// Some of a model's parameters: by name, or by a predicate of your own.
class Selection {
 public:
  using Predicate = std::function<bool(const ParameterInfo& parameter)>;

  // `text` is for messages. `required`: a model without any such parameter is a mistake.
  Selection(std::string text, Predicate contains, bool required = false)
      : text_(std::move(text)), contains_(std::move(contains)), required_(required) {}
  template <std::predicate<const ParameterInfo&> F>
  requires(!std::same_as<std::remove_cvref_t<F>, Selection>)
      // NOLINTNEXTLINE(google-explicit-constructor): a predicate is a selection
      Selection(F&& contains)
      : Selection("a predicate", Predicate(std::forward<F>(contains))) {}

  bool contains(const ParameterInfo& parameter) const { return contains_(parameter); }
  const std::string& text() const { return text_; }
  bool required() const { return required_; }

 private:
  std::string text_;
  Predicate contains_;
  bool required_;
};

// Vectors and single numbers: biases, and the gains and biases of norms.
Selection biases_and_norms();
// Those with one of these names, in which * stands for anything: named({"tokens.*", "*.head.*"}).
Selection named(std::vector<std::string> patterns);

// What is different for a group.
struct GroupOptions {
  std::optional<double> lr{};
  std::optional<double> weight_decay{};
  std::optional<double> beta1{};
  std::optional<double> beta2{};
};

struct ParameterGroup {
  ParameterGroup(Selection which, const GroupOptions& differences)
      : parameters(std::move(which)), options(differences) {}
  // With a rule of its own.
  ParameterGroup(Selection which, const Optimizer& its)
      : parameters(std::move(which)), rule(its.clone()) {}

  Selection parameters;
  GroupOptions options{};
  std::shared_ptr<const Optimizer> rule{};
};

// A rule, and groups of parameters for which something is different; the first group that a
// parameter is in counts. A schedule's factor applies to the learning rates of all, and
// Engine::set_learning_rate, which sets that of the rule, changes the others in proportion.
//
//   ParameterGroups(AdamW({.lr = 3e-4, .weight_decay = 0.1}),
//                   {{biases_and_norms(), {.weight_decay = 0}},
//                    {named({"tokens.*", "places.*"}), {.lr = 1e-4, .beta2 = 0.95}}})
class ParameterGroups final : public Optimizer {
 public:
  // Throws ConfigError where the rule has no such setting.
  ParameterGroups(const Optimizer& rule, const std::vector<ParameterGroup>& groups);

  std::string name() const override;  // of all rules: "adamw" or "adamw+sgd"
  double learning_rate() const override { return rule_->learning_rate(); }
  std::string settings() const override;
  std::vector<OptimizerState> states(const ParameterInfo& parameter) const override;
  bool takes_whole_parameters() const override;
  std::vector<const Optimizer*> assign(const std::vector<ParameterInfo>& parameters) const override;
  // Of a parameter that slice.whole names, or of none.
  void update(const ParameterSlice& slice,
              const GradientTransform& transform,
              double learning_rate) const override;
  std::unique_ptr<Optimizer> clone() const override {
    return std::make_unique<ParameterGroups>(*this);
  }

 private:
  struct Group {
    Selection parameters;
    std::shared_ptr<const Optimizer> rule;
  };
  const Optimizer& rule_of(const ParameterInfo& parameter) const;

  std::shared_ptr<const Optimizer> rule_;
  std::vector<Group> groups_;
};

// A rule that does not decay these.
ParameterGroups without_decay(const Optimizer& rule,
                              const Selection& parameters = biases_and_norms());

}  // namespace trireme
