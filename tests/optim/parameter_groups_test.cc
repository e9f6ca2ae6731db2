#include "trireme/optim/parameter_groups.h"

#include <gtest/gtest.h>

#include "support/ranks.h"
#include "trireme/core/error.h"

namespace trireme {
namespace {

using testing::message_of;

const std::vector<ParameterInfo>& parameters() {
  static const std::vector<ParameterInfo> all = {{"tokens.weight", {7, 4}, {4, 1}},
                                                 {"blocks.0.norm.weight", {4}, {1}},
                                                 {"blocks.0.up.weight", {8, 4}, {4, 1}},
                                                 {"blocks.0.up.bias", {8}, {1}},
                                                 {"scale", {}, {}}};
  return all;
}

std::vector<std::string> settings_of(const Optimizer& optimizer) {
  std::vector<std::string> texts;
  for (const Optimizer* rule : optimizer.assign(parameters())) {
    texts.push_back(rule->name() + ", " + rule->settings());
  }
  return texts;
}

std::string text(const Optimizer& rule) {
  return rule.name() + ", " + rule.settings();
}

TEST(ParameterGroups, ARuleAloneIsEverybodys) {
  const AdamW rule({.lr = 0.5});
  EXPECT_EQ(settings_of(rule), std::vector<std::string>(5, text(rule)));
}

TEST(ParameterGroups, BiasesAndNormsNeedNoDecay) {
  const AdamW decays({.lr = 0.5, .weight_decay = 0.1});
  const AdamW rests({.lr = 0.5, .weight_decay = 0});
  EXPECT_EQ(settings_of(without_decay(decays)),
            (std::vector<std::string>{
                text(decays), text(rests), text(decays), text(rests), text(rests)}));
  EXPECT_EQ(without_decay(decays).name(), "adamw") << "so it goes on with its checkpoints";
}

TEST(ParameterGroups, TheFirstGroupCounts) {
  const ParameterGroups groups(
      Sgd({.lr = 0.5, .momentum = 0.9}),
      {{named({"*.up.*", "tokens.*"}), {.lr = 0.25}},
       {biases_and_norms(), {.lr = 0.125, .weight_decay = 0.5}},
       {[](const ParameterInfo& p) { return p.name == "scale"; }, Lion()}});
  const std::string slow = text(Sgd({.lr = 0.25, .momentum = 0.9}));
  const std::string other = text(Sgd({.lr = 0.125, .momentum = 0.9, .weight_decay = 0.5}));
  EXPECT_EQ(settings_of(groups), (std::vector<std::string>{slow, other, slow, slow, other}));
  EXPECT_EQ(groups.name(), "sgd+lion");
  EXPECT_EQ(groups.learning_rate(), 0.5);
  EXPECT_EQ(groups.clone()->settings(), groups.settings());
}

// An engine asks the rule itself for its passes, not what is around it.
TEST(ParameterGroups, OfGroupsAreTheirRules) {
  const Lamb decays({.weight_decay = 0.5});
  const std::string rests = text(Lamb({.weight_decay = 0}));
  const std::string fast = text(Sgd({.lr = 0.5}));
  const ParameterGroups groups(without_decay(decays), {{named({"tokens.*"}), Sgd({.lr = 0.5})}});
  EXPECT_EQ(settings_of(groups),
            (std::vector<std::string>{fast, rests, text(decays), rests, rests}));
  EXPECT_FALSE(groups.assign(parameters())[1]->passes().empty());
  const ParameterGroups inside(Sgd({.lr = 0.5}), {{named({"*.norm.*"}), without_decay(decays)}});
  EXPECT_EQ(settings_of(inside), (std::vector<std::string>{fast, rests, fast, fast, fast}));
  EXPECT_EQ(inside.assign(parameters())[1]->name(), "lamb");
}

TEST(ParameterGroups, TheSettingsTellOneSetOfGroupsFromAnother) {
  const AdamW rule;
  const auto settings = [&](const std::vector<ParameterGroup>& groups) {
    return ParameterGroups(rule, groups).settings();
  };
  EXPECT_NE(settings({}), settings({{biases_and_norms(), {.weight_decay = 0}}}));
  EXPECT_NE(settings({{named({"a"}), {.weight_decay = 0}}}),
            settings({{biases_and_norms(), {.weight_decay = 0}}}));
  EXPECT_NE(settings({{named({"a"}), {.beta2 = 0.5}}}), settings({{named({"a"}), {.beta1 = 0.5}}}));
}

TEST(ParameterGroups, RefuseWhatCannotBe) {
  std::string message = message_of<ConfigError>([] {
    ParameterGroups(Sgd(), {{named({"head.*"}), {.beta1 = 0.5}}});
  });
  EXPECT_NE(message.find("(head.*): sgd has no beta1; its settings are lr"), std::string::npos)
      << message;
  message = message_of<ConfigError>([] {
    ParameterGroups(AdamW(), {{biases_and_norms(), {.beta1 = 1.5}}});
  });
  EXPECT_NE(message.find("(biases and norms): adamw: beta1"), std::string::npos) << message;
  message = message_of<ConfigError>([] {
    ParameterGroups(AdamW(), {{named({"tokns.*"}), {.lr = 1}}}).assign(parameters());
  });
  EXPECT_NE(message.find("tokns.*"), std::string::npos) << message;
  EXPECT_NE(message.find("tokens.weight"), std::string::npos) << "what there is: " << message;
  EXPECT_THROW(ParameterGroups(Sgd({.lr = 0}), {{biases_and_norms(), {.lr = 1}}}), ConfigError);
  EXPECT_NO_THROW(without_decay(AdamW()).assign({{"only.weight", {2, 2}, {2, 1}}}))
      << "a model without biases";
  message = message_of<ConfigError>([] { Muon().states(parameters()[1]); });
  EXPECT_NE(message.find("blocks.0.norm.weight has 1 dimension"), std::string::npos) << message;
}

}  // namespace
}  // namespace trireme
