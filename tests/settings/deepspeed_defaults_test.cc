// What a configuration for DeepSpeed leaves out is as DeepSpeed has it.

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "settings/settings_cases.h"
#include "trireme/settings/values.h"

namespace trireme::deepspeed_defaults_test {
namespace {

using settings_cases::from;

std::string with_optimizer(const std::string& type, const std::string& params = "") {
  return R"({"optimizer": {"type": ")" + type + R"(", "params": {)" + params + "}}}";
}

// train_batch_size = train_micro_batch_size_per_gpu x gradient_accumulation_steps x ranks, with an
// accumulation of 1 where only the second is given.
TEST(DeepspeedDefaults, MakeABatchOfOneMicroBatchForEachRank) {
  for (const std::int64_t ranks : {1, 2, 3, 5}) {
    for (const char* model : {"gpt", "mlp"}) {
      TrainSettings given = from(R"({"train_micro_batch_size_per_gpu": 4})");
      given.model = model;
      given.ranks = ranks;
      const TrainSettings s = resolve(given);
      EXPECT_EQ(s.batch, 4 * 1 * ranks);
      EXPECT_EQ(s.micro_batch, "4");
    }
  }
}

TEST(DeepspeedDefaults, LeaveTheBatchToWhatIsGiven) {
  EXPECT_EQ(from(R"({"train_micro_batch_size_per_gpu": 4, "train_batch_size": 64})").accumulate, 0);
  EXPECT_EQ(from(R"({"train_micro_batch_size_per_gpu": 4, "batch": 64})").accumulate, 0);
  EXPECT_EQ(from(R"({"train_micro_batch_size_per_gpu": 4, "train_batch_size": "auto"})").accumulate,
            0);
  EXPECT_EQ(from(R"({"train_micro_batch_size_per_gpu": "auto"})").accumulate, 0);
  EXPECT_EQ(from(R"({"micro_batch": 4})").accumulate, 0) << "none of DeepSpeed's names";
  // A run that is resumed with other ranks keeps its batch.
  TrainSettings before{.model = "mlp"};
  before.batch = 32;
  apply_json(before, R"({"train_micro_batch_size_per_gpu": 4})", "a.json");
  before.ranks = 3;
  EXPECT_EQ(resolve(before).batch, 32);
}

// As FusedAdam, FusedLamb and FusedLion of DeepSpeed and torch::optim's others have them.
TEST(DeepspeedDefaults, AreThoseOfTheOptimizerThatIsNamed) {
  const std::vector<std::pair<std::string, std::map<std::string, double>>> cases = {
      {"Adam", {{"lr", 1e-3}, {"weight_decay", 0}, {"eps", 1e-8}}},
      {"AdamW", {{"lr", 1e-3}, {"weight_decay", 0}, {"eps", 1e-8}}},
      {"Lamb", {{"lr", 1e-3}, {"weight_decay", 0}, {"eps", 1e-8}}},
      {"Lion", {{"lr", 1e-3}, {"weight_decay", 0}}},
      {"SGD", {{"lr", 1e-3}, {"weight_decay", 0}, {"momentum", 0}}},
      {"Adagrad", {{"lr", 1e-2}, {"weight_decay", 0}, {"eps", 1e-10}}},
      {"RMSprop", {{"lr", 1e-2}, {"weight_decay", 0}, {"momentum", 0}, {"eps", 1e-8}}},
  };
  for (const auto& [type, expected] : cases) {
    const auto used = optimizer_settings(resolve(from(with_optimizer(type))));
    for (const auto& [name, value] : expected) {
      EXPECT_EQ(used.at(name), value) << type << " " << name;
    }
  }
  const TrainSettings given =
      resolve(from(with_optimizer("SGD", R"("lr": 0.5, "momentum": 0.25, "weight_decay": 0.125)")));
  EXPECT_EQ(given.lr, 0.5);
  EXPECT_EQ(given.momentum, 0.25);
  EXPECT_EQ(given.weight_decay, 0.125);
  // PyTorch's AdamW decays by 0.01, its Adam by nothing.
  EXPECT_EQ(resolve(from(with_optimizer("AdamW", R"("torch_adam": true)"))).weight_decay, 0.01);
  EXPECT_EQ(resolve(from(with_optimizer("Adam", R"("torch_adam": true, "adam_w_mode": false)")))
                .weight_decay,
            0);
}

TEST(DeepspeedDefaults, KeepTheRateConstantWithoutAScheduler) {
  for (const char* model : {"gpt", "mlp", "convnet"}) {
    TrainSettings given = from(with_optimizer("AdamW"));
    given.model = model;
    const TrainSettings s = resolve(given);
    EXPECT_EQ(s.schedule, ScheduleKind::kConstant) << model;
    EXPECT_EQ(s.warm_up, 0) << model;
  }
  EXPECT_EQ(
      from(R"({"optimizer": {"type": "Adam"}, "scheduler": {"type": "WarmupDecayLR"}})").schedule,
      ScheduleKind::kLinear);
  EXPECT_EQ(from(R"({"optimizer": {"type": "Adam"}, "schedule": "cosine"})").schedule,
            ScheduleKind::kCosine);
  EXPECT_EQ(from(R"({"train_batch_size": 8})").schedule, TrainSettings{}.schedule);
}

TEST(DeepspeedDefaults, ClipNothingWithoutGradientClipping) {
  for (const std::string& json : {with_optimizer("AdamW"),
                                  std::string(R"({"train_batch_size": 8})"),
                                  std::string(R"({"train_micro_batch_size_per_gpu": 8})"),
                                  std::string(R"({"gradient_accumulation_steps": 8})")}) {
    EXPECT_EQ(from(json).clip_norm, 0) << json;
  }
  EXPECT_EQ(from(R"({"train_batch_size": 8, "gradient_clipping": 0.5})").clip_norm, 0.5);
  EXPECT_EQ(from(R"({"train_batch_size": 8, "clip_norm": 0.5})").clip_norm, 0.5);
  EXPECT_EQ(from(R"({"train_batch_size": 8, "gradient_clipping": "auto"})").clip_norm,
            TrainSettings{}.clip_norm);
}

TEST(DeepspeedDefaults, AreForFilesWithDeepspeedsNamesOnly) {
  for (const char* json : {R"({"optimizer": "adamw", "batch": 8})",
                           R"({"zero_optimization": {"stage": 0}, "steps_per_print": 50})"}) {
    TrainSettings s = from(json);
    TrainSettings expected;
    expected.batch = s.batch;
    expected.log_every = s.log_every;
    EXPECT_EQ(to_json(s), to_json(expected)) << json;
  }
}

// A flag is applied after the file, and has to find its way free.
TEST(DeepspeedDefaults, GiveWayToFlags) {
  const std::string json = R"({"train_micro_batch_size_per_gpu": 4,
    "optimizer": {"type": "SGD", "params": {"lr": 1}}})";
  const auto with_flags_for = [&](const std::set<std::string>& flags) {
    TrainSettings settings;
    apply_json(settings, json, "a.json", flags);
    return settings;
  };
  EXPECT_EQ(with_flags_for({}).accumulate, 1);
  for (const char* flag : {"batch", "micro_batch", "accumulate"}) {
    EXPECT_EQ(with_flags_for({flag}).accumulate, 0) << flag;
  }
  const TrainSettings other = with_flags_for({"optimizer"});
  EXPECT_EQ(other.momentum, TrainSettings{}.momentum) << "that of the optimizer which is chosen";
  EXPECT_EQ(with_flags_for({"momentum"}).momentum, TrainSettings{}.momentum);
  EXPECT_EQ(with_flags_for({"schedule"}).schedule, TrainSettings{}.schedule);
  EXPECT_EQ(with_flags_for({"clip_norm"}).clip_norm, TrainSettings{}.clip_norm);
}

}  // namespace
}  // namespace trireme::deepspeed_defaults_test
