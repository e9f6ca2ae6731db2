#include "same_work.h"

#include <set>

#include <gtest/gtest.h>

#include "trireme/settings/settings_table.h"

namespace trireme::tools {
namespace {

// Every setting was thought about: one that is added, or whose name is mistyped in the lists, turns
// up here as one that changes the work.
TEST(SameWork, TheseSettingsChangeWhatIsComputed) {
  std::set<std::string> found;
  for (const Setting& setting : settings_table()) {
    if (effect_on_speed(setting.name) == Effect::kWork) {
      found.insert(setting.name);
    }
  }
  const std::set<std::string> wanted = {"model",         "size",           "layers",
                                        "width",         "heads",          "hidden",
                                        "stages",        "dropout",        "data",
                                        "format",        "sequence",       "vocabulary",
                                        "target",        "header",         "separator",
                                        "regression",    "normalise",      "loss_weights",
                                        "shift",         "flip",           "noise",
                                        "batch",         "batch_schedule", "optimizer",
                                        "momentum",      "nesterov",       "l1",
                                        "clip_norm",     "clip_value",     "compress",
                                        "sync",          "sync_every",     "sync_group",
                                        "sync_schedule", "sync_states",    "sync_graph",
                                        "staleness",     "order",          "servers",
                                        "ema_decay",     "precision",      "round_weights",
                                        "sparse_update", "categorical",    "unseen",
                                        "missing",       "missing_values", "optimizer_options",
                                        "prune",         "prune_begin",    "prune_end",
                                        "prune_every",   "sync_window"};
  EXPECT_EQ(found, wanted);
}

TEST(SameWork, NamesTheModelFirstAndAFewReasonsOnly) {
  const Reasons reasons = other_work({{"batch", "128", "32"},
                                      {"dropout", "0", "0.1"},
                                      {"heads", "1", "2"},
                                      {"layers", "1", "2"},
                                      {"lr", "1", "2"},
                                      {"model", "mlp", "gpt"}},
                                     false);
  EXPECT_EQ(reasons_text(reasons),
            "different model: mlp and gpt; batch: 128 and 32; dropout: 0 and 0.1; heads: 1 and 2; "
            "and 1 more");
  EXPECT_TRUE(other_work({{"data", "a", "b"}}, /*same_data=*/true).empty());
  EXPECT_FALSE(other_work({{"data", "a", "b"}}, /*same_data=*/false).empty());
}

// What is masked is easier or harder to tell than what comes next: the losses of the two are of
// different tasks. Other models learn the same from the same data.
TEST(SameWork, ABertAsksAnotherQuestionThanAGpt) {
  EXPECT_EQ(reasons_text(other_question({{"model", "gpt", "bert"}})),
            "different model: gpt and bert");
  EXPECT_FALSE(other_question({{"model", "bert", "gpt"}}).empty());
  EXPECT_TRUE(other_question({{"model", "mlp", "convnet"}}).empty());
}

}  // namespace
}  // namespace trireme::tools
