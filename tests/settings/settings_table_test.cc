#include <algorithm>
#include <set>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "settings/settings_cases.h"
#include "trireme/optim/optimizer.h"
#include "trireme/settings/model_kinds.h"
#include "trireme/settings/unused.h"

namespace trireme::settings_table_test {
namespace {

using settings_cases::another_value;
using settings_cases::expect_parts;
using settings_cases::from;
using settings_cases::refusal;
using settings_cases::refusal_of_json;
using settings_cases::refusal_of_text;
using settings_cases::setting;
using Json = nlohmann::json;

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

}  // namespace
}  // namespace trireme::settings_table_test
