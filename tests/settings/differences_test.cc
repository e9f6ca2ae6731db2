#include "trireme/settings/differences.h"

#include <set>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "settings/settings_cases.h"
#include "trireme/core/error.h"
#include "trireme/settings/values.h"

namespace trireme::differences_test {
namespace {

using settings_cases::another_value;
using settings_cases::expect_parts;
using settings_cases::from;
using settings_cases::names_of;
using settings_cases::refusal;
using Json = nlohmann::json;

TEST(Differences, AreThoseThatChangeTheResult) {
  // How it is computed and what is written, but not what is computed.
  const std::set<std::string> free = {"ranks",          "zero",
                                      "placement",      "unit_bytes",
                                      "bucket_bytes",   "balance",
                                      "speeds",         "straggler_factor",
                                      "timeout",        "data_threads",
                                      "memory_limit",   "recompute",
                                      "log_every",      "histogram_every",
                                      "tensorboard",    "save_weights",
                                      "save_initial",   "save_every",
                                      "keep_last",      "keep_every",
                                      "snapshot_limit", "allow_changes",
                                      "record_samples", "compress_check",
                                      "goal",           "run",
                                      "replay",         "started_in",
                                      "offload"};
  for (const Setting& each : settings_table()) {
    TrainSettings given;
    each.set_text(given, another_value(each).first);
    const auto differences = differences_of_result(to_json(TrainSettings{}), given);
    if (free.count(each.name) > 0) {
      EXPECT_TRUE(differences.empty()) << each.name;
    } else if (each.name != "sum_order" && each.name != "lr_scaling") {
      ASSERT_EQ(names_of(differences), std::vector<std::string>{each.name});
      EXPECT_EQ(differences[0].saved, each.default_text);
      EXPECT_EQ(differences[0].given, each.to_json(given));
    }
  }
}

TEST(Differences, CountRanksWhereTheResultDependsOnThem) {
  const auto differ = [](TrainSettings both) {
    const std::string saved = to_json(both);
    both.ranks = 2;
    both.balance = Balance::kMeasured;
    return names_of(differences_of_result(saved, both));
  };
  EXPECT_TRUE(differ({}).empty());
  TrainSettings settings;
  settings.lr_scaling = WorldScaling::kSquareRoot;
  EXPECT_EQ(differ(settings), (std::vector<std::string>{"ranks"}));
  settings.lr_scaling = WorldScaling::kNone;
  settings.sync = Synchronisation::kLocal;
  EXPECT_EQ(differ(settings), (std::vector<std::string>{"ranks"}));
  settings.sync = Synchronisation::kExact;
  settings.sum_order = SumOrder::kLocalFirst;
  EXPECT_EQ(differ(settings), (std::vector<std::string>{"ranks", "balance"}));
}

// Inside a replica all is exact, whatever its size.
TEST(Differences, CountReplicasAndNotTheirRanks) {
  TrainSettings saved;
  saved.sync = Synchronisation::kLocal;
  saved.ranks = 2;
  TrainSettings given = saved;
  given.ranks = 4;
  auto differences = differences_of_result(to_json(saved), given);
  ASSERT_EQ(names_of(differences), (std::vector<std::string>{"ranks"}));
  expect_parts(to_string(differences), {"ranks: 2 in the checkpoint, 4 now", "2 and 4 replicas"});
  given.sync_group = "2";
  EXPECT_TRUE(differences_of_result(to_json(saved), given).empty());
  given.lr_scaling = saved.lr_scaling = WorldScaling::kLinear;
  EXPECT_EQ(names_of(differences_of_result(to_json(saved), given)),
            (std::vector<std::string>{"ranks"}));
  // How many machines there are is known to the ranks only.
  given = saved;
  given.sync_group = "machine";
  EXPECT_EQ(names_of(differences_of_result(to_json(saved), given)),
            (std::vector<std::string>{"sync_group"}));
}

TEST(Differences, KnowOlderSettingsAndOthersModels) {
  TrainSettings mine;
  mine.model = "a model of my own";
  EXPECT_TRUE(differences_of_result(to_json(mine), mine).empty());
  // One that was added later had no other effect than its default.
  Json older = Json::parse(to_json(mine));
  older.erase("noise");
  older["gone"] = 3;
  EXPECT_TRUE(differences_of_result(older.dump(), mine).empty());
  mine.noise = 0.5;
  EXPECT_EQ(names_of(differences_of_result(older.dump(), mine)), std::vector<std::string>{"noise"});
  EXPECT_THROW(differences_of_result("{", mine), ConfigError);
}

// Runs of versions that had no such setting decayed everything, whatever the default is now.
TEST(Differences, KnowWhatTheAbsenceOfASettingMeant) {
  TrainSettings now = resolve(from(R"({"model": "gpt"})"));
  Json older = Json::parse(to_json(now));
  older.erase("decay_all");
  older.erase("optimizer_options");
  const auto differences = differences_of_result(older.dump(), now);
  ASSERT_EQ(names_of(differences), std::vector<std::string>{"decay_all"});
  EXPECT_EQ(differences[0].saved, "true");
  EXPECT_EQ(differences[0].given, "false");
  const TrainSettings resumed = recorded_settings(older.dump(), "config.json");
  EXPECT_TRUE(resumed.decay_all);
  EXPECT_TRUE(differences_of_result(older.dump(), resolve(resumed)).empty());
  EXPECT_FALSE(recorded_settings(to_json(now), "config.json").decay_all);
  now.model = "mlp";  // other models always do
  EXPECT_TRUE(resolve(now).decay_all);
}

// Runs of version 0.1.0 have these. What is added later says what such a run did in its place: with
// today's default, it would go on as another training.
TEST(Differences, EverySettingThatIsAddedSaysWhatItsAbsenceMeant) {
  const std::set<std::string> first = {"model",
                                       "size",
                                       "layers",
                                       "width",
                                       "heads",
                                       "hidden",
                                       "stages",
                                       "dropout",
                                       "initialisation",
                                       "recompute",
                                       "data",
                                       "eval_data",
                                       "format",
                                       "eval_fraction",
                                       "sequence",
                                       "stride",
                                       "vocabulary",
                                       "target",
                                       "header",
                                       "separator",
                                       "regression",
                                       "categorical",
                                       "unseen",
                                       "missing",
                                       "missing_values",
                                       "normalise",
                                       "sampling",
                                       "class_weights",
                                       "loss_weights",
                                       "partition",
                                       "shares",
                                       "shift",
                                       "flip",
                                       "noise",
                                       "data_threads",
                                       "steps",
                                       "epochs",
                                       "batch",
                                       "micro_batch",
                                       "accumulate",
                                       "batch_schedule",
                                       "memory_limit",
                                       "seed",
                                       "optimizer",
                                       "lr",
                                       "momentum",
                                       "nesterov",
                                       "beta1",
                                       "beta2",
                                       "eps",
                                       "weight_decay",
                                       "l1",
                                       "schedule",
                                       "warm_up",
                                       "final_factor",
                                       "schedule_steps",
                                       "step_every",
                                       "milestones",
                                       "gamma",
                                       "half_period",
                                       "low_factor",
                                       "rise",
                                       "start_factor",
                                       "plateau_patience",
                                       "lr_scaling",
                                       "clip_norm",
                                       "clip_value",
                                       "ema_decay",
                                       "ranks",
                                       "threads",
                                       "zero",
                                       "placement",
                                       "precision",
                                       "sum_order",
                                       "loss_scale_initial",
                                       "loss_scale_window",
                                       "unit_bytes",
                                       "bucket_bytes",
                                       "balance",
                                       "speeds",
                                       "straggler_factor",
                                       "timeout",
                                       "eval_every",
                                       "eval_batch",
                                       "early_stop",
                                       "best",
                                       "goal",
                                       "folds",
                                       "save_every",
                                       "keep_last",
                                       "keep_every",
                                       "snapshot_limit",
                                       "weights_from",
                                       "weights_partial",
                                       "allow_changes",
                                       "run",
                                       "log_every",
                                       "histogram_every",
                                       "tensorboard",
                                       "save_weights",
                                       "save_initial",
                                       "record_samples"};
  for (const Setting& each : settings_table()) {
    if (first.count(each.name) == 0) {
      EXPECT_NE(each.absent_text, "") << each.name << ": Bounds::absent";
    }
    if (!each.absent_text.empty()) {
      TrainSettings settings;
      each.set_json(settings, each.absent_text);
      EXPECT_EQ(each.to_json(settings), each.absent_text) << each.name;
      EXPECT_EQ(each.to_json(recorded_settings("{}", "a run")), each.absent_text) << each.name;
    } else {
      EXPECT_EQ(each.to_json(recorded_settings("{}", "a run")), each.default_text) << each.name;
    }
  }
}

// The model was a gpt where nothing else was said; by now, none is the default.
TEST(Differences, TakeWhatAnOldRunDidAndNotTodaysDefault) {
  const TrainSettings given = resolve(from(R"({"model": "gpt", "ranks": 1})"));
  Json older = Json::parse(to_json(given));
  older.erase("model");
  EXPECT_TRUE(differences_of_result(older.dump(), given).empty());
  EXPECT_EQ(to_json(resolve(recorded_settings(older.dump(), "a run"))), to_json(given));
  EXPECT_EQ(names_of(differences_of_result(older.dump(), TrainSettings{})).front(), "model");
}

TEST(Differences, AreAllRefusedUnlessTheyAreAllowed) {
  TrainSettings given;
  given.lr = 0.5;
  given.hidden = {3, 4};
  const std::string saved = to_json(TrainSettings{});
  expect_parts(refusal([&] { check_same_result(saved, given, 70); }),
               {"step 70",
                "lr: \"auto\" in the checkpoint, 0.5 now",
                "hidden: [] in the checkpoint, [3,4] now",
                "--run",
                "--allow-changes"});
  given.allow_changes = true;
  EXPECT_EQ(check_same_result(saved, given, 70).size(), 2U);
}

// Runs of version 0.1.0 have zeros for what follows from the size.
TEST(Differences, KnowWhatASizeStandsFor) {
  for (const char* command : {R"({"model": "gpt"})",
                              R"({"model": "bert", "size": "small", "heads": 3})",
                              R"({"model": "wide", "data": "a.svm"})"}) {
    const TrainSettings now = resolve(from(command));
    Json older = Json::parse(to_json(now));
    const TrainSettings given = from(command);
    older["layers"] = given.layers;
    older["width"] = given.width;
    older["heads"] = given.heads;
    EXPECT_NE(older, Json::parse(to_json(now))) << command;
    EXPECT_TRUE(differences_of_result(older.dump(), now).empty()) << command;
    EXPECT_EQ(to_json(resolve(recorded_settings(older.dump(), "a run"))), to_json(now));
    // A program that has resolved nothing is as it was.
    EXPECT_TRUE(differences_of_result(to_json(given), given).empty());
    TrainSettings wider = now;
    wider.width += 12;
    EXPECT_EQ(names_of(differences_of_result(older.dump(), wider)),
              std::vector<std::string>{"width"});
  }
}

}  // namespace
}  // namespace trireme::differences_test
