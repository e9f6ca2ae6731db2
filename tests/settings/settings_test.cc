#include <algorithm>
#include <set>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "trireme/core/error.h"
#include "trireme/core/machine.h"
#include "trireme/optim/optimizer.h"
#include "trireme/settings/differences.h"
#include "trireme/settings/model_kinds.h"
#include "trireme/settings/settings_table.h"
#include "trireme/settings/unused.h"
#include "trireme/settings/values.h"

namespace trireme {
namespace {

using Json = nlohmann::json;

TrainSettings from(const std::string& json) {
  TrainSettings settings;
  apply_json(settings, json, "a.json");
  return settings;
}

const Setting& setting(const std::string& name) {
  for (const Setting& each : settings_table()) {
    if (each.name == name) {
      return each;
    }
  }
  throw InternalError("no setting " + name);
}

// What a call refuses, in its words; empty where it refuses nothing.
template <class Call>
std::string refusal(Call call) {
  try {
    call();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return {};
}

std::string refusal_of_json(const std::string& json) {
  return refusal([&] { from(json); });
}

std::string refusal_of_text(const std::string& name, const std::string& text) {
  return refusal([&] {
    TrainSettings settings;
    setting(name).set_text(settings, text);
  });
}

std::string refusal_of(const TrainSettings& settings) {
  return refusal([&] { resolve(settings); });
}

void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in: " << text;
  }
}

// A text that a setting of this kind takes and that is not its default, with what it is in JSON.
std::pair<std::string, Json> another_value(const Setting& of) {
  std::vector<std::pair<std::string, Json>> candidates;
  if (of.kind == "on/off") {
    candidates = {{"true", true}, {"off", false}};
  } else if (of.kind == "integer") {
    candidates = {{"2", 2}, {"3", 3}, {"64", 64}};
  } else if (of.kind == "number" || of.kind == "number or auto") {
    candidates = {{"0.5", 0.5}, {"2.5", 2.5}};
  } else if (of.kind == "list of integers") {
    candidates = {{"2,3,5", {2, 3, 5}}};
  } else if (of.kind == "list of numbers") {
    candidates = {{"0.5,2", {0.5, 2.0}}};
  } else if (of.kind == "list of STEP:BATCH") {
    candidates = {{"5:8,9:16", {"5:8", "9:16"}}};
  } else if (of.kind == "list of NAME=VALUE") {
    candidates = {{"alpha=0.5,centered", {"alpha=0.5", "centered"}}};
  } else if (of.kind == "list of columns" || of.kind == "list of words") {
    candidates = {{"age,city", {"age", "city"}}};
  } else if (of.kind == "integer, share or auto") {
    candidates = {{"4", "4"}};
  } else if (of.kind == "bytes or auto") {
    candidates = {{"512MB", "512MB"}};
  } else if (of.kind == "text") {
    candidates = {{"some words", "some words"}};
  } else {
    const std::string last = of.kind.substr(of.kind.rfind('|') + 1);
    candidates = {{last, last}};
  }
  for (auto& candidate : candidates) {
    if (candidate.second.dump() != of.default_text &&
        refusal_of_text(of.name, candidate.first).empty()) {
      return candidate;
    }
  }
  ADD_FAILURE() << of.name << ": the test knows no value for \"" << of.kind << "\"";
  return {};
}

TEST(SettingsTable, HasEveryMemberOnceWithAMeaning) {
  std::set<std::string> names;
  for (const Setting& each : settings_table()) {
    EXPECT_TRUE(names.insert(each.name).second) << each.name << " is there twice";
    EXPECT_FALSE(each.meaning.empty()) << each.name;
    EXPECT_FALSE(each.group.empty()) << each.name;
    EXPECT_EQ(each.default_text, each.to_json(TrainSettings{})) << each.name;
  }
}

TEST(SettingsTable, TakesEverySettingAsText) {
  for (const Setting& each : settings_table()) {
    const auto [text, value] = another_value(each);
    TrainSettings settings;
    each.set_text(settings, text);
    Json expected = Json::parse(to_json(TrainSettings{}));
    expected[each.name] = value;
    EXPECT_EQ(Json::parse(to_json(settings)), expected)
        << each.name << " changes itself, and nothing else";
  }
}

TEST(SettingsTable, TakesEverySettingAsJson) {
  for (const Setting& each : settings_table()) {
    const auto [text, value] = another_value(each);
    TrainSettings by_text;
    each.set_text(by_text, text);
    TrainSettings by_setter;
    each.set_json(by_setter, value.dump());
    EXPECT_EQ(to_json(by_setter), to_json(by_text)) << each.name;
    EXPECT_EQ(to_json(from(Json{{each.name, value}}.dump())), to_json(by_text)) << each.name;
  }
}

TEST(SettingsTable, ReadsBackWhatItWrote) {
  TrainSettings settings;
  for (const Setting& each : settings_table()) {
    each.set_text(settings, another_value(each).first);
  }
  EXPECT_EQ(to_json(from(to_json(settings))), to_json(settings));
  EXPECT_EQ(to_json(from(to_json(TrainSettings{}))), to_json(TrainSettings{}));
}

// What runs have recorded must not change its meaning when an enumeration does.
TEST(SettingsTable, HasTheWordOfEveryChoice) {
  TrainSettings settings;
  const auto expect = [&](const char* name, auto TrainSettings::*member, const auto& choices) {
    std::string kind;
    for (const auto& [word, value] : choices) {
      setting(name).set_text(settings, word);
      EXPECT_EQ(settings.*member, value) << name << " " << word;
      EXPECT_EQ(setting(name).to_json(settings), Json(word).dump());
      kind += (kind.empty() ? "" : "|") + std::string(word);
    }
    EXPECT_EQ(setting(name).kind, kind);
  };
  using S = TrainSettings;
  using Header = CsvOptions::Header;
  using Missing = CsvOptions::Missing;
  using Unseen = CsvOptions::Unseen;
  using Kind = ScheduleKind;
  using Begin = Initialisation;
  using In = TrainPrecision;
  const auto pairs = [](auto... all) { return std::vector{all...}; };
  const auto is = [](const char* word, auto value) { return std::pair(word, value); };
  expect("initialisation",
         &S::initialisation,
         pairs(is("auto", Begin::kAutomatic),
               is("torch", Begin::kTorch),
               is("he", Begin::kHe),
               is("xavier", Begin::kXavier),
               is("gpt2", Begin::kGpt2)));
  expect(
      "size",
      &S::size,
      pairs(
          is("tiny", TextSize::kTiny), is("small", TextSize::kSmall), is("gpt2", TextSize::kGpt2)));
  expect("header",
         &S::header,
         pairs(is("auto", Header::kAutomatic), is("yes", Header::kYes), is("no", Header::kNo)));
  expect("unseen", &S::unseen, pairs(is("refuse", Unseen::kRefuse), is("ignore", Unseen::kIgnore)));
  expect("missing",
         &S::missing,
         pairs(is("refuse", Missing::kRefuse),
               is("mean", Missing::kNan),
               is("zero", Missing::kZero),
               is("drop", Missing::kDrop)));
  expect("normalise",
         &S::normalise,
         pairs(is("none", Normalise::kNone), is("standard", Normalise::kStandard)));
  expect("sampling",
         &S::sampling,
         pairs(is("shuffled", Sampling::kShuffled),
               is("balanced", Sampling::kBalanced),
               is("weighted", Sampling::kWeighted),
               is("sequential", Sampling::kSequential)));
  expect("partition",
         &S::partition,
         pairs(is("uniform", Partition::kUniform), is("hash", Partition::kHash)));
  expect("schedule",
         &S::schedule,
         pairs(is("auto", Kind::kAutomatic),
               is("constant", Kind::kConstant),
               is("cosine", Kind::kCosine),
               is("linear", Kind::kLinear),
               is("step", Kind::kStep),
               is("multi_step", Kind::kMultiStep),
               is("one_cycle", Kind::kOneCycle),
               is("cyclic", Kind::kCyclic),
               is("plateau", Kind::kPlateau)));
  expect("lr_scaling",
         &S::lr_scaling,
         pairs(is("none", WorldScaling::kNone),
               is("linear", WorldScaling::kLinear),
               is("sqrt", WorldScaling::kSquareRoot)));
  expect("placement",
         &S::placement,
         pairs(is("auto", Placement::kAutomatic),
               is("mapped", Placement::kMapped),
               is("copied", Placement::kCopied)));
  expect("precision",
         &S::precision,
         pairs(is("float32", In::kFloat32),
               is("bfloat16", In::kBFloat16),
               is("float16", In::kFloat16),
               is("autocast", In::kAutocast)));
  expect("sum_order",
         &S::sum_order,
         pairs(is("chained", SumOrder::kChained), is("local_first", SumOrder::kLocalFirst)));
  expect("balance",
         &S::balance,
         pairs(is("equal", Balance::kEqual),
               is("speeds", Balance::kSpeeds),
               is("measured", Balance::kMeasured)));
  settings.partition = Partition::kCustom;  // of a sampler, but of no setting
  EXPECT_NE(refusal([&] { to_json(settings); }).find("partition: expected uniform, hash, found"),
            std::string::npos);
}

TEST(SettingsTable, KeepsEveryDigitOfANumber) {
  TrainSettings settings;
  settings.lr = 0.1 + 0.2;
  settings.seed = 18446744073709551615U;
  settings.steps = 9007199254740993;  // 2^53 + 1, which is no double
  const TrainSettings read = from(to_json(settings));
  EXPECT_EQ(read.lr, settings.lr);
  EXPECT_EQ(read.seed, settings.seed);
  EXPECT_EQ(read.steps, settings.steps);
  setting("seed").set_text(settings, "18446744073709551615");
  EXPECT_EQ(settings.seed, 18446744073709551615U);
}

// What a run has stored is what it goes on with; and the same command over it changes nothing.
TEST(SettingsTable, ResolvedSettingsResolveToThemselves) {
  const std::vector<std::string> commands = {
      R"({"model": "gpt"})",
      R"({"model": "gpt", "size": "gpt2", "schedule": "linear"})",
      R"({"model": "mlp", "optimizer": "sgd"})",
      R"({"model": "convnet", "ranks": 3, "zero": 3, "placement": "copied"})",
      R"({"model": "wide", "data": "a.svm"})",
      R"({"batch": 48, "ranks": 2, "accumulate": 3})",
      R"({"micro_batch": "4", "ranks": 3, "accumulate": 2})",
      R"({"micro_batch": "share", "batch": 10, "ranks": 3})",
      R"({"micro_batch": "auto", "batch": 64, "batch_schedule": ["9:128"]})",
      R"({"steps": 30})",
      R"({"epochs": 0.5})",
      R"({"model": "mlp", "epochs": 2, "warm_up": 4, "clip_norm": 0.5})",
      R"({"balance": "speeds", "speeds": [1, 2.5], "ranks": 2})",
      R"({"train_batch_size": 32, "gradient_accumulation_steps": 2, "ranks": 4})",
      R"({"save_every": 100, "keep_last": 0, "snapshot_limit": "1.5GiB", "weights_from": "a"})",
  };
  for (const std::string& command : commands) {
    const TrainSettings once = resolve(from(command));
    EXPECT_EQ(to_json(resolve(from(to_json(once)))), to_json(once)) << command;
    TrainSettings again = from(to_json(once));
    apply_json(again, command, "the same command");
    EXPECT_EQ(to_json(resolve(again)), to_json(once)) << command;
  }
}

TEST(SettingsTable, IsWholeInHelpAndPage) {
  for (const Setting& each : settings_table()) {
    expect_parts(settings_help(), {"  " + each.flag() + " <" + each.kind + ">"});
    expect_parts(settings_page(), {"| `" + each.flag() + "` | `" + each.name + "` |"});
    EXPECT_EQ(each.flag().find('_'), std::string::npos);
  }
}

// --- settings that have no effect

TEST(Unused, AreThoseThatTheModelDoesNotName) {
  std::set<std::string> of_models;
  for (const ModelKind& kind : model_kinds()) {
    for (const std::string& name : kind.settings) {
      EXPECT_EQ(setting(name).name, name) << kind.name;
      of_models.insert(name);
    }
  }
  EXPECT_TRUE(of_models.contains("layers") && of_models.contains("hidden"));
  for (const std::string& model : model_names()) {
    TrainSettings settings;
    settings.model = model;
    for (const Setting& each : settings_table()) {
      const auto& own = model_kind(model).settings;
      const bool used = std::find(own.begin(), own.end(), each.name) != own.end();
      const std::string why = why_unused(each.name, settings);
      const bool by_model = why.find("the model " + model + " does not") != std::string::npos;
      EXPECT_EQ(by_model, of_models.contains(each.name) && !used) << model << " " << each.name;
    }
  }
}

TEST(Unused, AreThoseThatTheOptimizerDoesNotHave) {
  for (const RuleInfo& rule : optimizer_rules()) {
    TrainSettings settings;
    settings.model = "mlp";
    settings.optimizer = rule.name;
    for (const char* name : {"momentum", "nesterov", "beta1", "beta2", "eps", "l1"}) {
      EXPECT_EQ(why_unused(name, settings).empty(), rule.usual(name).has_value())
          << rule.name << " " << name;
    }
    EXPECT_EQ(why_unused("weight_decay", settings), "");
    EXPECT_EQ(why_unused("lr", settings), "");
  }
}

// --- differences

std::vector<std::string> names_of(const std::vector<SettingDifference>& differences) {
  std::vector<std::string> names;
  for (const SettingDifference& each : differences) {
    names.push_back(each.name);
  }
  return names;
}

TEST(Differences, AreThoseThatChangeTheResult) {
  // How it is computed and what is written, but not what is computed.
  const std::set<std::string> free = {"ranks",
                                      "zero",
                                      "placement",
                                      "unit_bytes",
                                      "bucket_bytes",
                                      "balance",
                                      "speeds",
                                      "straggler_factor",
                                      "timeout",
                                      "data_threads",
                                      "memory_limit",
                                      "recompute",
                                      "log_every",
                                      "histogram_every",
                                      "tensorboard",
                                      "save_weights",
                                      "save_initial",
                                      "save_every",
                                      "keep_last",
                                      "keep_every",
                                      "snapshot_limit",
                                      "allow_changes",
                                      "record_samples",
                                      "goal",
                                      "run"};
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
  settings.sum_order = SumOrder::kLocalFirst;
  EXPECT_EQ(differ(settings), (std::vector<std::string>{"ranks", "balance"}));
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
                "lr: \"auto\" in the checkpoint, 0.5 given",
                "hidden: [] in the checkpoint, [3,4] given",
                "--run",
                "--allow-changes"});
  given.allow_changes = true;
  EXPECT_EQ(check_same_result(saved, given, 70).size(), 2U);
}

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
      {R"({"lr": 1, "scheduler": {"type": "OneCycle", "params": {"cycle_max_lr": 1}}})",
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

// --- DeepSpeed

TEST(DeepspeedNames, SetBatchesClippingAndOutput) {
  const TrainSettings s = from(R"({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 8, "gradient_clipping": 0.5, "steps_per_print": 7, "seed": 9,
    "tensorboard": {"enabled": false, "output_path": "x", "job_name": "y"}, "wall_clock_breakdown": true})");
  EXPECT_EQ(s.batch, 64);
  EXPECT_EQ(s.micro_batch, "4");
  EXPECT_EQ(s.accumulate, 8);
  EXPECT_EQ(s.clip_norm, 0.5);
  EXPECT_EQ(s.log_every, 7);
  EXPECT_EQ(s.seed, 9U);
  EXPECT_FALSE(s.tensorboard);
  EXPECT_TRUE(from(R"({"tensorboard": {"enabled": true}})").tensorboard);
  EXPECT_FALSE(from(R"({"tensorboard": false})").tensorboard);
}

TEST(DeepspeedNames, SetTheOptimizer) {
  const TrainSettings s = from(R"({"optimizer": {"type": "AdamW", "params":
    {"lr": 3e-4, "betas": [0.8, 0.95], "eps": 1e-7, "weight_decay": 0.1}}})");
  EXPECT_EQ(s.optimizer, "adamw");
  EXPECT_EQ(s.lr, 3e-4);
  EXPECT_EQ(s.beta1, 0.8);
  EXPECT_EQ(s.beta2, 0.95);
  EXPECT_EQ(s.eps, 1e-7);
  EXPECT_EQ(s.weight_decay, 0.1);
  const TrainSettings sgd = from(
      R"({"optimizer": {"type": "SGD", "params": {"lr": 1, "momentum": 0.5, "nesterov": true}}})");
  EXPECT_EQ(sgd.optimizer, "sgd");
  EXPECT_EQ(sgd.momentum, 0.5);
  EXPECT_TRUE(sgd.nesterov);
  const std::vector<std::pair<std::string, std::string>> rules = {
      {"Adam", "adamw"}, {"Lamb", "lamb"}, {"Lion", "lion"}, {"Adagrad", "adagrad"}};
  for (const auto& [theirs, ours] : rules) {
    EXPECT_EQ(from(R"({"optimizer": {"type": ")" + theirs + R"("}})").optimizer, ours);
  }
  EXPECT_EQ(from(R"({"optimizer": "lion"})").optimizer, "lion");
}

TEST(DeepspeedNames, KnowThatTheirAdamDecouplesTheDecayUnlessToldNotTo) {
  EXPECT_EQ(from(R"({"optimizer": {"type": "Adam", "params": {"adam_w_mode": false}}})").optimizer,
            "adam");
  EXPECT_EQ(from(R"({"optimizer": {"type": "Adam", "params": {"adam_w_mode": true}}})").optimizer,
            "adamw");
  expect_parts(
      refusal_of_json(R"({"optimizer": {"type": "SGD", "params": {"adam_w_mode": true}}})"),
      {"adam_w_mode"});
}

TEST(DeepspeedNames, TakeWhatOnlyTunesTheOptimizerEitherWay) {
  for (const char* value : {"true", "false"}) {
    const std::string json = R"({"optimizer": {"type": "Adam", "params": {"torch_adam": )" +
                             std::string(value) + R"(, "fused": )" + value + "}}}";
    EXPECT_EQ(refusal_of_json(json), "");
  }
  EXPECT_EQ(
      refusal_of_json(R"({"optimizer": {"type": "Lamb", "params": {"bias_correction": true}}})"),
      "");
  expect_parts(
      refusal_of_json(R"({"optimizer": {"type": "Lamb", "params": {"bias_correction": false}}})"),
      {"bias_correction", "expected true"});
}

TEST(DeepspeedNames, SetTheScheduleOfEachType) {
  TrainSettings s = from(R"({"scheduler": {"type": "WarmupLR", "params":
    {"warmup_min_lr": 0, "warmup_max_lr": 0.01, "warmup_num_steps": 50, "warmup_type": "linear"}}})");
  EXPECT_EQ(s.schedule, ScheduleKind::kConstant);
  EXPECT_EQ(s.lr, 0.01);
  EXPECT_EQ(s.warm_up, 50);
  s = from(R"({"scheduler": {"type": "WarmupDecayLR", "params":
    {"total_num_steps": 900, "warmup_num_steps": 30, "warmup_type": "linear"}}})");
  EXPECT_EQ(s.schedule, ScheduleKind::kLinear);
  EXPECT_EQ(s.schedule_steps, 900);
  EXPECT_EQ(s.warm_up, 30);
  EXPECT_EQ(s.final_factor, 0);
  s = from(R"({"scheduler": {"type": "WarmupCosineLR", "params":
    {"total_num_steps": 800, "warmup_num_steps": 20, "cos_min_ratio": 0.25, "warmup_type": "linear"}}})");
  EXPECT_EQ(s.schedule, ScheduleKind::kCosine);
  EXPECT_EQ(s.schedule_steps, 800);
  EXPECT_EQ(s.warm_up, 20);
  EXPECT_EQ(s.final_factor, 0.25);
  s = from(R"({"scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0.001,
    "cycle_max_lr": 0.004, "cycle_first_step_size": 100, "cycle_second_step_size": 300}}})");
  EXPECT_EQ(s.schedule, ScheduleKind::kOneCycle);
  EXPECT_EQ(s.lr, 0.004);
  EXPECT_DOUBLE_EQ(s.start_factor, 0.001 / 0.004);
  EXPECT_DOUBLE_EQ(s.rise, 100.0 / 400);
  EXPECT_EQ(s.schedule_steps, 400);
}

TEST(DeepspeedNames, WarmUpAsLongAsDeepspeedWhereNothingIsSaid) {
  EXPECT_EQ(from(R"({"scheduler": {"type": "WarmupLR"}})").warm_up, 1000);
  const std::string automatic =
      R"({"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": "auto"}}})";
  EXPECT_EQ(from(automatic).warm_up, TrainSettings{}.warm_up);
}

TEST(DeepspeedNames, SetTheStageAndItsBuckets) {
  const TrainSettings s = from(R"({"zero_optimization": {"stage": 2, "reduce_bucket_size": 5e5,
    "overlap_comm": true, "contiguous_gradients": true, "allgather_bucket_size": 5e8,
    "offload_optimizer": {"device": "none"}, "offload_param": null}})");
  EXPECT_EQ(s.zero, 2);
  EXPECT_EQ(s.bucket_bytes, 4 * 500000);
}

TEST(DeepspeedNames, SetThePrecision) {
  EXPECT_EQ(from(R"({"bf16": {"enabled": true}})").precision, TrainPrecision::kBFloat16);
  EXPECT_EQ(from(R"({"bf16": {"enabled": false}, "fp16": {"enabled": false}})").precision,
            TrainPrecision::kFloat32);
  const TrainSettings s =
      from(R"({"fp16": {"enabled": true, "loss_scale": 0, "initial_scale_power": 10,
    "loss_scale_window": 77, "hysteresis": 2, "min_loss_scale": 1}, "bf16": {"enabled": false}})");
  EXPECT_EQ(s.precision, TrainPrecision::kFloat16);
  EXPECT_EQ(s.loss_scale_initial, 1024);
  EXPECT_EQ(s.loss_scale_window, 77);
}

TEST(DeepspeedNames, LeaveAutomaticValuesAlone) {
  const TrainSettings s =
      from(R"({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto", "gradient_clipping": "auto",
    "bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"},
    "zero_optimization": {"stage": 1, "reduce_bucket_size": "auto"},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
    "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto",
      "warmup_num_steps": "auto", "total_num_steps": "auto"}}})");
  TrainSettings expected;
  expected.zero = 1;
  expected.schedule = ScheduleKind::kLinear;
  EXPECT_EQ(to_json(s), to_json(expected));
}

TEST(DeepspeedNames, RefuseWhatCannotBeHonoured) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}})", "offload"},
      {R"({"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}})", "offload"},
      {R"({"zero_optimization": {"stage": 3, "offload_param": {"device": 3}}})", "offload"},
      {R"({"scheduler": {"type": "LRRangeTest"}})", "LRRangeTest"},
      {R"({"scheduler": {"type": 3}})", "scheduler.type"},
      {R"({"scheduler": {"params": {}}})", "scheduler.type"},
      {R"({"scheduler": {"type": "WarmupLR", "params": {"warmup_type": "log"}}})", "linear"},
      {R"({"scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 0.1}}})", "begins at 0"},
      {R"({"scheduler": {"type": "WarmupCosineLR", "params": {"warmup_min_ratio": 0.1}}})",
       "begins at 0"},
      {R"({"scheduler": {"type": "WarmupCosineLR", "params": {"cos_min_ratio": 2}}})",
       "cos_min_ratio"},
      {R"({"scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0.1}}})", "cycle_max_lr"},
      {R"({"scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 2, "cycle_max_lr": 1}}})",
       "cycle_min_lr"},
      {R"({"optimizer": {"type": "OneBitAdam"}})", "OneBitAdam"},
      {R"({"optimizer": {"type": "Adam", "params": {"betas": [0.9]}}})", "two numbers"},
      {R"({"optimizer": {"type": "Adam", "params": {"betas": [0.9, 7]}}})", "betas"},
      {R"({"bf16": {"enabled": true}, "fp16": {"enabled": true}})", "both"},
      {R"({"fp16": {"enabled": true, "loss_scale": 128}})", "dynamic"},
      {R"({"fp16": {"enabled": true, "initial_scale_power": -3}})", "initial_scale_power"},
      {R"({"zero_optimization": {"stage": 4}})", "zero_optimization.stage"},
      {R"({"zero_optimization": {"reduce_bucket_size": 1e30}})", "reduce_bucket_size"},
      {R"({"zero_optimization": {"reduce_bucket_size": -1}})", "reduce_bucket_size"},
      {R"({"zero_optimization": true})", "object"},
      {R"({"bf16": true})", "object"},
      {R"({"bf16": {"enabled": 1}})", "true or false"},
      {R"({"tensorboard": {"enabled": 1}})", "true or false"},
      {R"({"optimizer": {"type": "Adam", "params": 3}})", "object"},
      {R"({"train_batch_size": "many"})", "train_batch_size"},
  };
  for (const auto& [json, part] : cases) {
    expect_parts(refusal_of_json(json), {"a.json", part});
  }
}

// --- resolve

struct BatchCase {
  std::int64_t batch;
  std::string micro_batch;
  std::int64_t accumulate;
  std::int64_t ranks;
};

TrainSettings with(const BatchCase& given) {
  TrainSettings settings;
  settings.batch = given.batch;
  settings.micro_batch = given.micro_batch;
  settings.accumulate = given.accumulate;
  settings.ranks = given.ranks;
  return settings;
}

TEST(Resolve, KeepsDeepspeedsEquationWhicheverOfTheThreeIsLeftOut) {
  for (const std::int64_t ranks : {1, 2, 3, 4, 7}) {
    for (const std::int64_t micro : {1, 2, 5}) {
      for (const std::int64_t accumulate : {1, 2, 6}) {
        const std::int64_t batch = micro * accumulate * ranks;
        const std::string size = std::to_string(micro);
        for (const BatchCase& given : {BatchCase{batch, size, accumulate, ranks},
                                       BatchCase{0, size, accumulate, ranks},
                                       BatchCase{batch, "share", accumulate, ranks},
                                       BatchCase{batch, "auto", accumulate, ranks},
                                       BatchCase{batch, size, 0, ranks}}) {
          const TrainSettings resolved = resolve(with(given));
          EXPECT_EQ(resolved.batch, batch);
          EXPECT_EQ(resolved.micro_batch, size);
        }
      }
    }
  }
}

TEST(Resolve, SharesTheBatchAmongTheRanksOrTakesTheNextSmallerDivisor) {
  for (std::int64_t batch = 1; batch <= 40; ++batch) {
    for (std::int64_t ranks = 1; ranks <= 9; ++ranks) {
      const std::int64_t size = std::stoll(resolve(with({batch, "share", 0, ranks})).micro_batch);
      ASSERT_EQ(batch % size, 0);
      EXPECT_TRUE(size <= batch / ranks || size == 1);
      for (std::int64_t larger = size + 1; larger <= batch / ranks; ++larger) {
        EXPECT_NE(batch % larger, 0) << larger << " divides " << batch << " and was not taken";
      }
    }
  }
}

TEST(Resolve, RefusesBatchesThatDoNotAddUp) {
  expect_parts(refusal_of(with({10, "share", 2, 3})), {"batch", "2 x 3", "10"});
  expect_parts(refusal_of(with({24, "3", 2, 2})), {"3 x 2 x 2", "24"});
  expect_parts(refusal_of(with({10, "3", 0, 1})), {"micro_batch", "divisor", "10", "3"});
  expect_parts(refusal_of(with({10, "0", 0, 1})), {"micro_batch"});
  expect_parts(refusal_of(with({10, "-5", 0, 1})), {"micro_batch"});
  expect_parts(refusal_of(with({10, "some", 0, 1})), {"micro_batch", "\"some\""});
  expect_parts(refusal_of(with({10, "", 0, 1})), {"micro_batch"});
}

TEST(Resolve, RefusesBatchesThatAreTooLargeToCount) {
  const std::int64_t huge = std::int64_t{1} << 62;
  expect_parts(refusal_of(with({8, "share", huge, 4})), {"accumulate"});
  expect_parts(refusal_of(with({0, std::to_string(huge), 4, 1})), {"micro_batch"});
  expect_parts(refusal_of(with({0, "4", huge, 2})), {"accumulate"});
  expect_parts(refusal_of_text("batch", std::to_string(huge - 1)), {"batch", "at most"});
  // A large prime has no divisor to share, which must not take for ever to find out.
  EXPECT_EQ(resolve(with({999999999989, "share", 0, 2})).micro_batch, "1");
}

// The default must not depend on the machine: the bits would.
TEST(Resolve, TheDefaultMicroBatchFollowsFromModelAndBatch) {
  const auto chosen = [](const char* model, std::int64_t batch, std::int64_t ranks) {
    TrainSettings settings;
    settings.model = model;
    settings.data = "data";
    settings.batch = batch;
    settings.ranks = ranks;
    return resolve(settings).micro_batch;
  };
  for (const std::int64_t ranks : {0, 1, 2, 3, 64}) {
    EXPECT_EQ(chosen("gpt", 0, ranks), "4");
    EXPECT_EQ(chosen("mlp", 0, ranks), "32");
    EXPECT_EQ(chosen("wide", 0, ranks), "32");
    EXPECT_EQ(chosen("convnet", 0, ranks), "16");
    EXPECT_EQ(chosen("gpt", 30, ranks), "3");
    EXPECT_EQ(chosen("mlp", 34, ranks), "17");
    EXPECT_EQ(chosen("mlp", 37, ranks), "1");
  }
  // Never more than half a batch, so that a second rank has work; tiny batches, and those of which
  // only single samples would be left, are not divided.
  for (const auto& [model, most] : std::vector<std::pair<const char*, std::int64_t>>{
           {"gpt", 4}, {"convnet", 16}, {"mlp", 32}}) {
    for (std::int64_t batch = 1; batch <= 200; ++batch) {
      const auto largest_up_to = [&](std::int64_t bound) {
        std::int64_t found = 1;
        for (std::int64_t size = 1; size <= std::min(bound, batch); ++size) {
          found = batch % size == 0 ? size : found;
        }
        return found;
      };
      const std::int64_t half = largest_up_to(std::min(most, batch / 2));
      const std::int64_t wanted = batch < 4 || half == 1 ? largest_up_to(most) : half;
      EXPECT_EQ(chosen(model, batch, 0), std::to_string(wanted)) << model << " " << batch;
    }
  }
  TrainSettings settings;
  settings.model = "mlp";
  settings.batch = 72;
  settings.batch_schedule = {"10:48"};
  EXPECT_EQ(resolve(settings).micro_batch, "24") << "of 72 and 48";
  settings.batch_schedule = {"10:24"};
  EXPECT_EQ(resolve(settings).micro_batch, "12") << "half of the smaller batch";
}

TEST(Resolve, TakesARankForEachProcessorButNoMoreThanMicroBatches) {
  const auto processors = static_cast<std::int64_t>(allowed_cpus().size());
  TrainSettings settings;
  settings.model = "mlp";
  settings.batch = 32;
  settings.micro_batch = "32";
  EXPECT_EQ(resolve(settings).ranks, 1);
  settings.batch = 100000;
  settings.micro_batch = "1";
  EXPECT_GE(resolve(settings).ranks, 1);
  EXPECT_LE(resolve(settings).ranks, processors);
  settings.ranks = 3;
  EXPECT_EQ(resolve(settings).ranks, 3);
  EXPECT_EQ(resolve(settings).threads, 1);
}

TEST(Resolve, NeedsThreads) {
  TrainSettings settings;
  settings.threads = 0;
  settings.allow_changes = true;
  expect_parts(refusal_of(settings), {"threads: expected a number of at least 1, found 0"});
  expect_parts(refusal_of_text("threads", "0"), {"threads: expected", "at least 1", "found 0"});
}

TEST(Resolve, LeavesAnAutomaticMicroBatchToTheRun) {
  const TrainSettings resolved = resolve(with({12, "auto", 0, 2}));
  EXPECT_EQ(resolved.micro_batch, "auto");
  EXPECT_EQ(resolved.batch, 12);
}

TEST(Resolve, ReadsMemoryLimits) {
  EXPECT_EQ(memory_limit_bytes("auto"), std::nullopt);
  EXPECT_EQ(memory_limit_bytes("none"), 0U);
  expect_parts(refusal([] { snapshot_limit_bytes("none"); }), {"snapshot_limit", "or auto, found"});
  EXPECT_EQ(memory_limit_bytes("4096"), 4096U);
  EXPECT_EQ(memory_limit_bytes("512MB"), 512'000'000U);
  EXPECT_EQ(memory_limit_bytes("1.5GiB"), 3U * (1U << 29));
  EXPECT_EQ(memory_limit_bytes("3kB"), 3000U);
  EXPECT_EQ(memory_limit_bytes("2KiB"), 2048U);
  EXPECT_EQ(memory_limit_bytes("1TB"), 1'000'000'000'000U);
  for (const char* text : {"",
                           "MB",
                           "-1MB",
                           "0",
                           "0MB",
                           "0.5",
                           "12 MB",
                           "12mb",
                           "12XB",
                           "nan",
                           "inf",
                           "infGB",
                           "1e30GB",
                           "1e999"}) {
    expect_parts(refusal([&] { memory_limit_bytes(text); }), {"memory_limit", "512MB"});
    TrainSettings settings;
    settings.memory_limit = text;
    expect_parts(refusal_of(settings), {"memory_limit"});
  }
}

// -1 is: as the model says. Other negative numbers are a slip of the hand.
TEST(Resolve, TakesNoNegativeNumberForADefault) {
  for (const char* name : {"dropout", "weight_decay", "momentum", "clip_norm", "warm_up"}) {
    EXPECT_EQ(refusal_of_text(name, "-1"), "") << name;
    EXPECT_EQ(refusal_of_text(name, "0"), "") << name;
  }
  TrainSettings settings;
  settings.weight_decay = -0.01;
  expect_parts(refusal_of(settings), {"weight_decay", "-0.01", "-1"});
  settings = {};
  settings.dropout = -0.25;
  expect_parts(refusal_of(settings), {"dropout", "-0.25"});
  settings = {};
  settings.clip_norm = -3;
  expect_parts(refusal_of(settings), {"clip_norm", "-3"});
  settings = {};
  settings.warm_up = -10;
  expect_parts(refusal_of(settings), {"warm_up", "-10"});
  EXPECT_EQ(refusal_of({}), "");
}

TEST(Resolve, ReadsSeparators) {
  const std::vector<std::pair<std::string, char>> cases = {
      {"auto", '\0'}, {"tab", '\t'}, {"\t", '\t'}, {"space", ' '}, {";", ';'}, {"comma", ','}};
  for (const auto& [text, expected] : cases) {
    TrainSettings settings;
    settings.separator = text;
    EXPECT_EQ(separator_of(settings), expected) << text;
  }
  for (const char* text : {"", "\"", "\n", "ab", "\r"}) {
    TrainSettings settings;
    settings.separator = text;
    expect_parts(refusal_of(settings), {"separator", "expected one character"});
  }
}

TEST(Resolve, ReadsTheScheduleOfBatches) {
  TrainSettings settings = with({8, "4", 0, 2});
  settings.batch_schedule = {"10:16", "20:32"};
  const auto changes = batch_changes(resolve(settings));
  ASSERT_EQ(changes.size(), 2U);
  EXPECT_EQ(changes[0].step, 10);
  EXPECT_EQ(changes[0].batch, 16);
  EXPECT_EQ(changes[1].step, 20);
  EXPECT_EQ(changes[1].batch, 32);
  using Schedule = std::vector<std::string>;
  for (const Schedule& wrong : {Schedule{"10"},
                                Schedule{"10:"},
                                Schedule{":16"},
                                Schedule{"0:16"},
                                Schedule{"10:0"},
                                Schedule{"a:b"},
                                Schedule{"10:16:3"},
                                Schedule{"10:16", "10:32"},
                                Schedule{"20:16", "10:32"},
                                Schedule{"10:18"}}) {
    settings.batch_schedule = wrong;
    expect_parts(refusal_of(settings), {"batch_schedule"});
  }
}

TEST(Resolve, PutsInWhatTheModelSays) {
  TrainSettings settings;
  settings.model = "gpt";
  TrainSettings resolved = resolve(settings);
  EXPECT_EQ(resolved.data, "licenses");
  EXPECT_EQ(resolved.schedule, ScheduleKind::kCosine);
  EXPECT_EQ(resolved.clip_norm, 1);
  EXPECT_EQ(resolved.sequence, 64);
  EXPECT_EQ(resolved.lr, 1e-3);
  settings.model = "convnet";
  settings.optimizer = "sgd";
  resolved = resolve(settings);
  EXPECT_EQ(resolved.data, "fashion-mnist");
  EXPECT_EQ(resolved.schedule, ScheduleKind::kOneCycle);
  EXPECT_EQ(resolved.clip_norm, 0);
  EXPECT_EQ(resolved.dropout, 0.25);
  EXPECT_EQ(resolved.lr, 0.1);
  EXPECT_EQ(resolved.weight_decay, 0);
  settings.dropout = 0;
  settings.lr = 7;
  settings.clip_norm = 3;
  resolved = resolve(settings);
  EXPECT_EQ(resolved.dropout, 0) << "what was given stays";
  EXPECT_EQ(resolved.lr, 7);
  EXPECT_EQ(resolved.clip_norm, 3);
}

TEST(Resolve, KnowsTheSettingsOfEachRule) {
  EXPECT_EQ(resolve(from(R"({"optimizer": "sgd"})")).momentum, 0.9);
  EXPECT_EQ(resolve(from(R"({"optimizer": "adamw"})")).momentum, 0.9) << "as it always was";
  EXPECT_EQ(resolve(from(R"({"optimizer": "rmsprop"})")).momentum, 0);
  EXPECT_EQ(resolve(from(R"({"optimizer": "rmsprop"})")).lr, 1e-2);
  EXPECT_EQ(resolve(from(R"({"optimizer": "lamb"})")).weight_decay, 0.01);
  EXPECT_EQ(resolve(from(R"({"optimizer": "adafactor"})")).weight_decay, 0);
  const TrainSettings settings = from(
      R"({"optimizer": "rmsprop", "eps": 1e-4, "optimizer_options": ["alpha=0.5", "centered"]})");
  const std::map<std::string, double> rule = optimizer_settings(resolve(settings));
  EXPECT_EQ(rule.at("alpha"), 0.5);
  EXPECT_EQ(rule.at("centered"), 1);
  EXPECT_EQ(rule.at("eps"), 1e-4);
  EXPECT_EQ(rule.count("beta1"), 0U);
}

// A model of one's own has no name, or one that is not built in.
TEST(Resolve, PutsNothingOfABuiltInModelIntoOnesOwn) {
  for (const char* name : {"", "mine"}) {
    TrainSettings settings;
    settings.model = name;
    const TrainSettings resolved = resolve(settings);
    EXPECT_EQ(resolved.schedule, ScheduleKind::kOneCycle);
    EXPECT_EQ(resolved.warm_up, 0);
    EXPECT_EQ(resolved.clip_norm, 0);
    EXPECT_EQ(resolved.batch, 128);
    EXPECT_EQ(resolved.micro_batch, "32");
    EXPECT_EQ(resolved.steps, 0);
    EXPECT_EQ(resolved.epochs, 5);
    EXPECT_EQ(resolved.sequence, 0);
    EXPECT_EQ(resolved.eval_batch, 256);
    EXPECT_EQ(resolved.model, name);
  }
}

TEST(Models, AreDocumentedWithTheirDefaults) {
  const std::string page = settings_page();
  expect_parts(settings_help(), {"\ndefaults of the models\n", "up to 16"});
  for (const std::string& name : model_names()) {
    const ModelKind& kind = model_kind(name);
    EXPECT_EQ(kind.name, name);
    expect_parts(page, {name + ": " + kind.what, " " + name + " |"});
    TrainSettings settings;
    settings.model = name;
    settings.data = "data";
    const TrainSettings resolved = resolve(settings);
    EXPECT_EQ(resolved.batch, kind.defaults.batch);
    EXPECT_EQ(resolved.lr, kind.defaults.lr);
    EXPECT_EQ(resolved.steps, kind.defaults.steps);
    EXPECT_EQ(resolved.epochs, kind.defaults.epochs);
    if (kind.samples != SampleKind::kTokens) {  // those of text follow from its size
      EXPECT_EQ(resolved.layers, kind.defaults.layers);
      EXPECT_EQ(resolved.width, kind.defaults.width);
      EXPECT_EQ(resolved.heads, kind.defaults.heads);
    }
  }
  expect_parts(page, {"| --batch | 32 | 32 | 128 | 128 | 128 |"});
  EXPECT_EQ(model_kind("gtp").name, std::string());
  expect_parts(refusal_of_json(R"({"size": "large"})"), {"size", "tiny, small, gpt2", "large"});
}

// A model that is added appears in them by itself.
TEST(Models, AreListedInMessagesByWhatTheyTake) {
  const auto expect_list = [](const std::string& list, const auto& holds) {
    for (const ModelKind& kind : model_kinds()) {
      const bool is_in = list.find(kind.name) != std::string::npos;
      EXPECT_EQ(is_in, std::string(kind.name).empty() || holds(kind))
          << kind.name << " in " << list;
    }
  };
  expect_list(models_on(SampleKind::kDense),
              [](const ModelKind& kind) { return kind.samples == SampleKind::kDense; });
  expect_list(models_on(SampleKind::kDense, /*images=*/false), [](const ModelKind& kind) {
    return kind.samples == SampleKind::kDense && !kind.needs_images;
  });
  for (const std::string command : {"predict", "sample"}) {
    expect_list(models_for(command),
                [&](const ModelKind& kind) { return kind.command == command; });
  }
}

TEST(Resolve, RefusesSettingsThatContradictEachOther) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
      {R"({"placement": "mapped", "zero": 1})", {"placement", "zero = 1"}},
      {R"({"balance": "speeds", "ranks": 2, "speeds": [1]})", {"speeds", "2 ranks", "found 1"}},
      {R"({"balance": "speeds", "ranks": 2, "speeds": [0, 0]})", {"speeds"}},
      {R"({"speeds": [1]})", {"speeds", "balance = equal"}},
      {R"({"folds": 1})", {"folds", "at least 2"}},
      {R"({"folds": 3, "eval_data": "b.csv"})", {"eval_data, folds: ", "both", "\"b.csv\""}},
      {R"({"class_weights": [1, 2]})", {"class_weights", "sampling = shuffled"}},
      {R"({"schedule": "multi_step"})", {"milestones"}},
      {R"({"schedule": "multi_step", "milestones": [5, 3]})", {"milestones", "increasing"}},
      {R"({"weights_partial": true})", {"weights_partial", "weights_from"}},
      {R"({"snapshot_limit": "much"})", {"snapshot_limit", "512MB", "much"}},
      {R"({"model": "wide"})", {"data", "libsvm"}},
      {R"({"optimizer_options": ["amsgrad=maybe"]})", {"optimizer_options", "amsgrad=maybe"}},
      {R"({"optimizer_options": ["amsgrad=2"]})", {"amsgrad is a switch", "found 2"}},
      {R"({"optimizer": "adagrad", "optimizer_options": ["lr_decay"]})", {"\"lr_decay\""}},
      {R"({"optimizer": "sgd", "optimizer_options": ["dampening=true"]})", {"dampening=true"}},
      {R"({"optimizer_options": ["lr=1"]})", {"optimizer_options", "adamw with amsgrad", "lr=1"}},
      {R"({"optimizer": "lion", "optimizer_options": ["alpha=1"]})", {"lion none", "alpha=1"}},
      {R"({"optimizer": "rmsprop", "optimizer_options": ["alpha=1"]})", {"alpha", "below 1"}},
      {R"({"beta1": 1})", {"adamw", "beta1", "below 1"}},
      {R"({"optimizer": "sgd", "momentum": 0, "nesterov": true})", {"nesterov", "momentum"}},
      {R"({"model": "convnet", "hidden": [8, 8]})", {"hidden", "found 2"}},
  };
  for (const auto& [json, parts] : cases) {
    expect_parts(refusal_of(from(json)), parts);
  }
}

}  // namespace
}  // namespace trireme
