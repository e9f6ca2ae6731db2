#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "settings/settings_cases.h"
#include "trireme/core/error.h"
#include "trireme/settings/differences.h"
#include "trireme/settings/model_kinds.h"

namespace trireme::configuration_test {
namespace {

using settings_cases::expect_parts;
using settings_cases::from;
using settings_cases::names_of;
using settings_cases::refusal_of_json;
using settings_cases::refusal_of_text;
using settings_cases::setting;
using Json = nlohmann::json;

TEST(NearestName, ForgivesFewLettersAndFindsWhatIsContained) {
  const std::vector<std::string> names = {"batch", "lr", "micro_batch", "schedule", "steps"};
  EXPECT_EQ(nearest_name("bacth", names), "batch");
  EXPECT_EQ(nearest_name("microbatch", names), "micro_batch");
  EXPECT_EQ(nearest_name("step", names), "steps");
  EXPECT_EQ(nearest_name("learning_rate_schedule", names), "schedule");
  EXPECT_EQ(nearest_name("lerning_rate", names), "lr") << "what others call it";
  EXPECT_EQ(nearest_name("--lerning-rate", {"--zero", "--lr"}), "--lr");
  EXPECT_EQ(nearest_name("xyzzyxyzzy", names), "");
  EXPECT_EQ(nearest_name("anything", {}), "");
}

TEST(Configuration, RefusesUnknownNamesWithTheNearest) {
  expect_parts(refusal_of_json(R"({"bacth": 3})"),
               {"a.json", "\"bacth\"", "did you mean \"batch\""});
  expect_parts(refusal_of_json(R"({"train_batchsize": 3})"), {"did you mean \"train_batch_size\""});
  expect_parts(refusal_of_json(R"({"qqqqqqqqqqqq": 3})"), {"\"qqqqqqqqqqqq\"", "--help"});
  const std::vector<std::pair<std::string, std::string>> nested = {
      {R"({"zero_optimization": {"stages": 1}})", "stage"},
      {R"({"optimizer": {"typ": "Adam"}})", "type"},
      {R"({"optimizer": {"type": "Adam", "params": {"wieght_decay": 0}}})", "weight_decay"},
      {R"({"scheduler": {"type": "WarmupLR", "param": {}}})", "params"},
      {R"({"scheduler": {"type": "WarmupLR", "params": {"warmup_num_step": 1}}})",
       "warmup_num_steps"},
      {R"({"fp16": {"enabld": true}})", "enabled"},
      {R"({"tensorboard": {"enabeld": true}})", "enabled"},
  };
  for (const auto& [json, name] : nested) {
    expect_parts(refusal_of_json(json), {"a.json", "did you mean \"" + name + "\""});
  }
}

TEST(Configuration, SaysWhereJsonIsBrokenAndWhatWasExpected) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
      {R"({"batch": 3,})",
       {"line 1, column 13: expected a name in double quotes, found '}'", "one too many"}},
      {"{\n  \"batch\": 3\n  \"lr\": 1\n}",
       {"line 3, column 3: expected ',' or '}', found \"lr\""}},
      {"{\n  batch: 3\n}", {"line 2, column 3: expected a name in double quotes, found 'b"}},
      {"{\"batch\" 3}", {"line 1, column 10: expected ':' after the name, found '3'"}},
      {"{\"batch\": }", {"line 1, column 11: expected a value", "found '}'"}},
      {"{\"flip\": True}", {"line 1, column 10: expected a value", "found 'True'"}},
      {"{\"hidden\": [3 4]}", {"line 1, column 15: expected ',' or ']', found '4'"}},
      {"{\"batch\": 3", {"line 1, column 12: expected ',' or '}', found the end of the file"}},
      {"{\"x\":", {"line 1, column 6: expected a value", "found the end of the file"}},
      {"{\"x\": [1,", {"line 1, column 10: expected a value", "found the end of the file"}},
      {"{\"batch\": -}", {"line 1, column 1", "expected a number like 3"}},
      {"{\"data\": \"a\nb\"}",
       {"line 1, column 12: expected text on one line", "the end of the line"}},
      {"{\"data\": \"a", {"line 1, column 12: expected a closing double quote", "end of the file"}},
      {"{\"data\": \"a\\d\"}", {"line 1, column 1", "after a backslash", "found 'd'"}},
      {"{\"data\": \"\xff\"}", {"line 1, column 11: expected text in UTF-8, found \\xff"}},
      {"{\"batch\": 3}\n}",
       {"line 2, column 1: expected nothing more after the last '}', found '}'"}},
      {"// mine\n{}", {"line 1, column ", "JSON has no comments"}},
      {"", {"expected JSON", "found an empty file"}},
      {" \n ", {"expected JSON", "found an empty file"}},
      {"[1, 2]", {"object", "array"}},
      {"3", {"object", "number"}},
      {"{\n\"lr\": 1e999}",
       {"line 2, column 7: expected numbers that a double holds", "found 1e999"}},
  };
  for (const auto& [text, parts] : cases) {
    const std::string message = refusal_of_json(text);
    expect_parts(message, parts);
    EXPECT_EQ(message.find("a.json: "), 0U) << message;
    for (const char* inside : {"json.exception", "syntax error", "literal", "last read"}) {
      EXPECT_EQ(message.find(inside), std::string::npos) << message;
    }
    const bool one_too_many = message.find("one too many") != std::string::npos;
    EXPECT_EQ(one_too_many, text.find(",}") != std::string::npos) << message;
  }
}

// Who mends a file is told all that is wrong with it.
TEST(Configuration, ListsAllProblems) {
  const std::string message = refusal_of_json(R"({
    "bacth": 3, "steps": "many", "lr": 1,
    "optimizer": {"type": "Sgdd", "params": {"lr": 2, "betas": [1], "lrr": 3}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_type": "log", "warmup_min_lr": 1}},
    "zero_optimization": {"stage": 7, "offload_param": {"device": "cpu"}},
    "bf16": {"enabled": true}, "fp16": {"enabled": true, "loss_scale": 8}})");
  expect_parts(message,
               {"a.json: 12 problems:\n",
                "\n  unknown name \"bacth\"; did you mean \"batch\"?",
                "\n  steps: expected a whole number",
                "\n  optimizer.type: expected",
                "\n  optimizer.params.betas: expected two numbers",
                "\n  optimizer.params: unknown name \"lrr\"",
                "\n  scheduler.params.warmup_type: expected \"linear\"",
                "\n  scheduler.params.warmup_min_lr: expected 0",
                "\n  zero_optimization.stage",
                "\n  zero_optimization.offload_param",
                "\n  bf16 and fp16 are both enabled",
                "\n  fp16.loss_scale: expected 0",
                "\n  expected one name for each setting, found \"lr\""});
}

// Where ranks are started is no part of a run: a file that is used again would carry it elsewhere.
TEST(Configuration, NamesTheFlagOfWhatIsNoSetting) {
  for (const std::string flag : {"elastic",
                                 "restart",
                                 "heartbeat",
                                 "stall",
                                 "nnodes",
                                 "node-rank",
                                 "rendezvous",
                                 "store",
                                 "token-file",
                                 "interfaces",
                                 "backend",
                                 "algorithm",
                                 "sum-group",
                                 "encrypt",
                                 "resume",
                                 "config",
                                 "print-config"}) {
    std::string name = flag;
    std::replace(name.begin(), name.end(), '-', '_');
    expect_parts(
        refusal_of_json("{\"" + name + "\": 1}"),
        {"a.json: \"" + name + "\" is not a setting", "a flag of trireme train, --" + flag});
  }
}

TEST(FlagNames, StandForTheSettingsThatAMessageBeginsWith) {
  EXPECT_EQ(with_flags("batch: expected 3", {"batch"}), "--batch: expected 3");
  // As the engine says it.
  EXPECT_EQ(with_flags("EngineOptions::offload: no file (EngineOptions::zero)", {"offload"}),
            "--offload: no file (--zero)");
  EXPECT_EQ(with_flags("EngineOptions::offload: no file", {}), "offload (--offload): no file");
  EXPECT_EQ(with_flags("a file (EngineOptions::other): none", {}),
            "a file (EngineOptions::other): none");
  EXPECT_EQ(with_flags("micro_batch: expected 3", {"batch"}),
            "micro_batch (--micro-batch): expected 3");
  EXPECT_EQ(with_flags("ranks: expected 3", {"ranks"}), "-n: expected 3");
  EXPECT_EQ(with_flags("micro_batch, accumulate: expected 3", {"accumulate"}),
            "micro_batch (--micro-batch), --accumulate: expected 3");
  for (const std::string other : {"a.json: batch: expected 3", "batch", "", "it failed: batch"}) {
    EXPECT_EQ(with_flags(other, {"batch"}), other);
  }
}

TEST(Configuration, RefusesJsonThatIsNestedWithoutEnd) {
  const std::string deep = std::string(200'000, '[') + std::string(200'000, ']');
  // The 64th bracket after that of the object is one too many.
  expect_parts(refusal_of_json("{\"batch\": " + deep + "}"),
               {"a.json", "byte " + std::to_string(10 + 63), "at most 64 levels"});
  expect_parts(refusal_of_json("{\"optimizer\": {\"type\": " + deep + "}}"), {"a.json", "levels"});
  EXPECT_THROW(differences_of_result("{\"batch\": " + deep + "}", {}), ConfigError);
}

TEST(Configuration, RefusesANameThatIsThereTwice) {
  expect_parts(refusal_of_json(R"({"batch": 64, "lr": 1, "batch": 32})"),
               {"a.json", "\"batch\"", "twice"});
  expect_parts(
      refusal_of_json(R"({"optimizer": {"type": "SGD", "params": {"lr": 1, "eps": 1, "lr": 2}}})"),
      {"a.json", "\"lr\"", "twice"});
  // With what else is wrong, and once however often it is there.
  const std::string all =
      refusal_of_json(R"({"lr": 1, "bacth": 3, "lr": 2, "steps": "many", "lr": 3})");
  expect_parts(all,
               {"a.json: 3 problems:\n",
                "\n  the name \"lr\" appears twice",
                "\n  unknown name \"bacth\"; did you mean \"batch\"?",
                "\n  steps: expected a whole number"});
  // Objects side by side may have a name in common.
  EXPECT_EQ(refusal_of_json(R"({"bf16": {"enabled": false}, "fp16": {"enabled": true}})"), "");
}

TEST(Configuration, RefusesTwoNamesOfOneSetting) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
      {R"({"batch": 64, "train_batch_size": 32})", {"\"batch\"", "train_batch_size"}},
      {R"({"train_batch_size": 32, "batch": 32})", {"\"batch\"", "train_batch_size"}},
      {R"({"micro_batch": 4, "train_micro_batch_size_per_gpu": 8})",
       {"\"micro_batch\"", "train_micro_batch_size_per_gpu"}},
      {R"({"lr": 1, "optimizer": {"type": "SGD", "params": {"lr": 2}}})",
       {"\"lr\"", "optimizer.params.lr"}},
      {R"({"beta2": 0.9, "optimizer": {"type": "Adam", "params": {"betas": [0.8, 0.9]}}})",
       {"\"beta2\"", "optimizer.params.betas"}},
      {R"({"zero": 1, "zero_optimization": {"stage": 2}})",
       {"\"zero\"", "zero_optimization.stage"}},
      {R"({"precision": "float16", "bf16": {"enabled": true}})", {"\"precision\"", "bf16.enabled"}},
      {R"({"schedule": "step", "scheduler": {"type": "WarmupLR"}})",
       {"\"schedule\"", "scheduler.type"}},
      {R"({"warm_up": 5, "scheduler": {"type": "WarmupLR"}})", {"\"warm_up\"", "1000"}},
      {R"({"lr": 1, "scheduler": {"type": "OneCycle", "params": {"cycle_max_lr": 1,
         "cycle_momentum": false}}})",
       {"\"lr\"", "cycle_max_lr"}},
      {R"({"clip_norm": 1, "gradient_clipping": 1})", {"\"clip_norm\"", "gradient_clipping"}},
  };
  for (const auto& [json, parts] : cases) {
    expect_parts(refusal_of_json(json), parts);
    expect_parts(refusal_of_json(json), {"a.json", "leave one of them out"});
  }
  EXPECT_EQ(refusal_of_json(R"({"batch": 64, "train_batch_size": "auto"})"), "");
  EXPECT_EQ(refusal_of_json(R"({"precision": "bfloat16", "fp16": {"enabled": false}})"), "");
  // DeepSpeed's own two names of the rate, which its configurations usually have.
  const TrainSettings both = from(R"({"optimizer": {"type": "Adam", "params": {"lr": 0.25}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.5, "warmup_num_steps": 10}}})");
  EXPECT_EQ(both.lr, 0.5);
}

TEST(Configuration, ChecksTypes) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({"steps": "3"})", "a whole number"},
      {R"({"steps": 2.5})", "a whole number"},
      {R"({"steps": true})", "a whole number"},
      {R"({"steps": null})", "a whole number"},
      {R"({"steps": {}})", "steps"},
      {R"({"seed": -1})", "a whole number from 0"},
      {R"({"lr": "fast"})", "a number"},
      {R"({"lr": [1]})", "a number"},
      {R"({"flip": 1})", "true or false"},
      {R"({"flip": "true"})", "true or false"},
      {R"({"hidden": 3})", "list of integers"},
      {R"({"hidden": [3, "x"]})", "a whole number"},
      {R"({"data": [1]})", "text"},
      {R"({"data": 1.5})", "text"},
      {R"({"model": "gtp"})", "did you mean gpt"},
      {R"({"batch_schedule": "3:4"})", "list"},
  };
  for (const auto& [json, part] : cases) {
    expect_parts(refusal_of_json(json), {"a.json", part});
  }
  EXPECT_EQ(from(R"({"steps": 1e5})").steps, 100000);
  EXPECT_EQ(from(R"({"micro_batch": 8})").micro_batch, "8");
}

// A learning rate of 0 is not what anybody means by the default.
TEST(Configuration, HasAWordForTheLearningRateOfTheModel) {
  EXPECT_EQ(Json::parse(to_json(TrainSettings{})).at("lr"), "auto");
  EXPECT_EQ(resolve(from(R"({"model": "convnet", "lr": "auto"})")).lr,
            model_kind("convnet").defaults.lr);
  TrainSettings settings = from(R"({"lr": 0.5})");
  setting("lr").set_text(settings, "auto");
  EXPECT_EQ(to_json(settings), to_json(TrainSettings{}));
  for (const char* zero : {"0", "0.0", "-0", "0e3", "-1"}) {
    expect_parts(refusal_of_text("lr", zero), {"lr: expected a number above 0", "auto", "found"});
  }
  for (const char* json : {R"({"lr": 0})",
                           R"({"lr": -0.5})",
                           R"({"optimizer": {"type": "SGD", "params": {"lr": 0.0}}})"}) {
    expect_parts(refusal_of_json(json), {"lr: expected a number above 0", "auto"});
  }
}

// Runs of version 0.1.0 have a 0 for it.
TEST(Configuration, KnowsTheDefaultsOfOlderRuns) {
  for (const char* older : {R"({"lr": 0, "model": "convnet"})", R"({"lr": 0.0})"}) {
    Json words = Json::parse(older);
    words["lr"] = "auto";
    EXPECT_EQ(to_json(recorded_settings(older, "a run")),
              to_json(recorded_settings(words.dump(), "a run")));
    Json whole = Json::parse(to_json(from(words.dump())));
    whole["lr"] = 0;
    EXPECT_TRUE(differences_of_result(whole.dump(), from(words.dump())).empty());
    EXPECT_EQ(names_of(differences_of_result(
                           whole.dump(),
                           from(R"({"lr": 0.5, "model": ")" + words.value("model", "") + R"("})")))
                  .size(),
              1U);
  }
}

TEST(Configuration, ChecksTypesOfText) {
  const std::vector<std::pair<std::string, std::string>> cases = {{"steps", ""},
                                                                  {"steps", "3x"},
                                                                  {"steps", " 3"},
                                                                  {"steps", "1.5"},
                                                                  {"steps", "0x10"},
                                                                  {"lr", "nan"},
                                                                  {"lr", "inf"},
                                                                  {"lr", "1e999"},
                                                                  {"lr", "1,5"},
                                                                  {"seed", "-1"},
                                                                  {"flip", "maybe"},
                                                                  {"flip", ""},
                                                                  {"hidden", "1,,2"},
                                                                  {"hidden", "1;2"},
                                                                  {"optimizer", "Adam"},
                                                                  {"data", "\xff"}};
  for (const auto& [name, text] : cases) {
    expect_parts(refusal_of_text(name, text), {name, "expected", "found"});
  }
  TrainSettings settings;
  setting("steps").set_text(settings, "1e5");
  EXPECT_EQ(settings.steps, 100000);
  setting("hidden").set_text(settings, "");
  EXPECT_TRUE(settings.hidden.empty());
}

TEST(Configuration, AGoalIsAValueOfItsMetric) {
  for (const char* goal : {"loss:nan",
                           "loss:inf",
                           "loss:-inf",
                           "loss:-1",
                           "loss:",
                           "loss",
                           "accuracy:90",
                           "accuracy:-0.1",
                           "f1:1.5",
                           "perplexity:0.5",
                           "perplexity:inf",
                           "error:0.1"}) {
    TrainSettings settings;
    settings.goal = goal;
    try {
      resolve(settings);
      ADD_FAILURE() << goal;
    } catch (const ConfigError& error) {
      expect_parts(error.what(), {"goal: expected", "found", goal});
    }
  }
  for (const char* goal :
       {"loss:0", "loss:0.25", "accuracy:1", "f1:0.9", "perplexity:4", "rmse:2.5", "mae:0"}) {
    TrainSettings settings;
    settings.goal = goal;
    EXPECT_NO_THROW(resolve(settings)) << goal;
  }
}

TEST(Configuration, ChecksRanges) {
  const std::vector<std::pair<std::string, std::string>> cases = {{"zero", "4"},
                                                                  {"zero", "-1"},
                                                                  {"ranks", "-1"},
                                                                  {"ranks", "5000"},
                                                                  {"dropout", "1"},
                                                                  {"dropout", "-2"},
                                                                  {"dropout", "-0.5"},
                                                                  {"weight_decay", "-0.01"},
                                                                  {"weight_decay", "-2"},
                                                                  {"clip_norm", "-0.5"},
                                                                  {"clip_norm", "-3"},
                                                                  {"warm_up", "-2"},
                                                                  {"eval_fraction", "1"},
                                                                  {"beta1", "1.5"},
                                                                  {"log_every", "0"},
                                                                  {"hidden", "8,0"},
                                                                  {"stages", "-4"},
                                                                  {"speeds", "1,-1"},
                                                                  {"timeout", "0"},
                                                                  {"gamma", "2"},
                                                                  {"folds", "1001"},
                                                                  {"bucket_bytes", "1"},
                                                                  {"eps", "1e300"},
                                                                  {"eps", "1.5"},
                                                                  {"lr", "1e300"},
                                                                  {"lr", "1e31"},
                                                                  {"l1", "1e300"},
                                                                  {"noise", "1e300"},
                                                                  {"weight_decay", "1e300"},
                                                                  {"clip_norm", "1e300"},
                                                                  {"clip_value", "1e300"},
                                                                  {"loss_weights", "1,1e300"},
                                                                  {"class_weights", "1,1e300"},
                                                                  {"speeds", "1,1e300"},
                                                                  {"loss_scale_initial", "1e300"},
                                                                  {"straggler_factor", "1e300"},
                                                                  {"timeout", "1e300"},
                                                                  {"timeout", "1e10"},
                                                                  {"epochs", "1e300"},
                                                                  {"steps", "-1"},
                                                                  {"steps", "1e30"},
                                                                  {"steps", "9223372036854775808"},
                                                                  {"seed", "1e30"},
                                                                  {"seed", "18446744073709551616"}};
  for (const auto& [name, text] : cases) {
    expect_parts(refusal_of_text(name, text), {name, "expected", "found"});
    expect_parts(refusal_of_json("{\"" + name + "\": [" + text + "]}") +
                     refusal_of_json("{\"" + name + "\": " + text + "}"),
                 {name, "expected", "found"});
  }
  EXPECT_EQ(refusal_of_text("steps", "9223372036854775807"), "");
  expect_parts(refusal_of_json(R"({"steps": 18446744073709551615})"), {"steps", "expected"});
}

}  // namespace
}  // namespace trireme::configuration_test
