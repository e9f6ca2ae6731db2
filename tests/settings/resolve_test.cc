#include <algorithm>
#include <map>

#include <gtest/gtest.h>

#include "settings/settings_cases.h"
#include "trireme/core/machine.h"
#include "trireme/settings/values.h"

namespace trireme::resolve_test {
namespace {

using settings_cases::expect_parts;
using settings_cases::from;
using settings_cases::refusal;
using settings_cases::refusal_of;
using settings_cases::refusal_of_text;

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

TEST(Resolve, RefusesSettingsThatContradictEachOther) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
      {R"({"placement": "mapped", "zero": 1})", {"placement", "zero = 1"}},
      {R"({"balance": "speeds", "ranks": 2, "speeds": [1]})", {"speeds", "2 ranks", "found 1"}},
      {R"({"balance": "speeds", "ranks": 2, "speeds": [0, 0]})", {"speeds"}},
      {R"({"speeds": [1]})", {"speeds", "balance = equal"}},
      {R"({"folds": 1})", {"folds", "at least 2"}},
      {R"({"folds": 3, "eval_data": "b.csv"})", {"eval_data, folds: ", "both", "\"b.csv\""}},
      {R"({"loss_weights": [0, 0]})", {"loss_weights", "above 0"}},
      {R"({"class_weights": [1, 2]})", {"class_weights", "sampling = shuffled"}},
      {R"({"schedule": "multi_step"})", {"milestones", "found none"}},
      {R"({"schedule": "multi_step", "milestones": [5, 3]})", {"milestones", "found 3 after 5"}},
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
}  // namespace trireme::resolve_test
