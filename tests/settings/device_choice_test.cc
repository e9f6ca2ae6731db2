#include "trireme/settings/device_choice.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "settings/settings_cases.h"
#include "trireme/optim/optimizer.h"
#include "trireme/settings/differences.h"
#include "trireme/settings/settings_table.h"

namespace trireme::device_choice_test {
namespace {

using settings_cases::expect_parts;
using settings_cases::from;
using settings_cases::refusal;
using Json = nlohmann::json;

const UsableGpus kNone{.why_none = "there is no driver"};
const UsableGpus kOne{.names = {"NVIDIA H200"}};
const UsableGpus kThree{.names = {"Tesla T4", "NVIDIA L4", "Tesla T4"}};

DeviceChoice chosen(const std::string& json, const UsableGpus& gpus) {
  return choose_device(from(json), gpus);
}

TEST(DeviceChoice, TakesAGpuWhereThereIsOne) {
  for (const char* model : {"gpt", "bert", "mlp", "convnet"}) {
    const DeviceChoice found = chosen(R"({"model": ")" + std::string(model) + R"("})", kThree);
    EXPECT_EQ(found.settings.device, TrainDevice::kCuda) << model;
    EXPECT_EQ(found.settings.ranks, 3) << "one for each GPU";
    EXPECT_EQ(found.remark, "");
  }
  EXPECT_EQ(chosen(R"({"model": "mlp", "ranks": 2})", kOne).settings.ranks, 2);
}

TEST(DeviceChoice, TakesTheCpuAndSaysNothingWhereThereIsNone) {
  const DeviceChoice found = chosen(R"({"model": "mlp"})", kNone);
  EXPECT_EQ(found.settings.device, TrainDevice::kCpu);
  EXPECT_EQ(found.settings.ranks, 0) << "for resolve()";
  EXPECT_EQ(found.remark, "");
}

TEST(DeviceChoice, TakesTheCpuWhereItIsToldTo) {
  const DeviceChoice found = chosen(R"({"model": "mlp", "device": "cpu"})", kOne);
  EXPECT_EQ(found.settings.device, TrainDevice::kCpu);
  EXPECT_EQ(found.settings.ranks, 0);
  EXPECT_EQ(found.remark, "");
}

TEST(DeviceChoice, RefusesToGoWithoutAGpuThatIsAskedFor) {
  expect_parts(refusal([] { chosen(R"({"model": "mlp", "device": "cuda"})", kNone); }),
               {"device: expected a GPU", "there is no driver", "--device cpu", "--allow-changes"});
}

TEST(DeviceChoice, SaysWhatAGpuIsNotFor) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("model": "wide")", "the model wide has sparse gradients"},
      {R"("model": "mlp", "compress": "int8")", "--compress int8"},
      {R"("model": "mlp", "round_weights": "int8")", "--round-weights int8"},
      {R"("model": "mlp", "prune": 0.5)", "--prune 0.5"},
      {R"("model": "mlp", "sync": "local")", "--sync local"},
  };
  for (const auto& [settings, words] : cases) {
    const std::string json = "{" + std::string(settings);
    const DeviceChoice found = chosen(json + "}", kOne);
    EXPECT_EQ(found.settings.device, TrainDevice::kCpu) << settings;
    expect_parts(found.remark, {"training on the CPU and not on 1 GPU (NVIDIA H200)", words});
    expect_parts(refusal([&] { chosen(json + R"(, "device": "cuda"})", kOne); }),
                 {"device: on a GPU, ", words, "--device cpu"});
    EXPECT_EQ(chosen(json + "}", kNone).remark, "") << "nobody asked";
  }
  for (const RuleInfo& rule : optimizer_rules()) {
    EXPECT_EQ(why_not_on_gpu(from(R"({"model": "mlp", "optimizer": ")" + rule.name +
                                  R"(", "compress": "auto", "ema_decay": 0.9})")),
              "");
  }
  for (const char* placement : {"auto", "mapped", "copied"}) {
    const DeviceChoice found =
        chosen(R"({"model": "mlp", "zero": 3, "device": "cuda", "placement": ")" +
                   std::string(placement) + R"("})",
               kOne);
    EXPECT_EQ(found.settings.device, TrainDevice::kCuda) << placement;
    EXPECT_EQ(value_text("placement", found.settings), placement);
  }
}

// On the CPU it would change nothing: refused, and not passed over.
TEST(DeviceChoice, OffloadsToTheHostFromAGpuAlone) {
  const std::string json = R"({"model": "mlp", "offload": "optimizer")";
  EXPECT_EQ(chosen(json + "}", kOne).settings.device, TrainDevice::kCuda);
  expect_parts(refusal([&] { chosen(json + "}", kNone); }),
               {"offload: optimizer", "no GPU can be used", "disk:DIR"});
  expect_parts(refusal([&] { chosen(json + R"(, "device": "cpu"})", kOne); }),
               {"offload: optimizer", "on the CPU,"});
  expect_parts(refusal([&] { chosen(json + R"(, "prune": 0.5})", kOne); }),
               {"offload: optimizer", "--prune 0.5"});
  const std::string disk = R"({"model": "mlp", "offload": "disk:/tmp")";
  EXPECT_EQ(chosen(disk + "}", kNone).settings.device, TrainDevice::kCpu);
  EXPECT_EQ(chosen(disk + "}", kOne).settings.device, TrainDevice::kCuda);
}

TEST(DeviceChoice, NamesGpusAndDealsThemToTheRanks) {
  EXPECT_EQ(gpus_text(kOne), "1 GPU (NVIDIA H200)");
  EXPECT_EQ(gpus_text(kThree), "3 GPUs (Tesla T4, NVIDIA L4)");
  EXPECT_EQ(gpu_of_rank(0, kOne), 0);
  EXPECT_EQ(gpu_of_rank(5, kOne), 0);
  for (int rank = 0; rank < 7; ++rank) {
    EXPECT_EQ(gpu_of_rank(rank, kThree), rank % 3);
  }
}

// What has no device was computed on the CPU, whatever machine goes on with it.
TEST(DeviceChoice, OfARunFromBeforeGpusIsTheCpu) {
  TrainSettings given = resolve(from(R"({"model": "mlp", "ranks": 1, "device": "cpu"})"));
  Json older = Json::parse(to_json(given));
  EXPECT_EQ(older["device"], "cpu");
  older.erase("device");
  EXPECT_EQ(recorded_settings(older.dump(), "a run").device, TrainDevice::kCpu);
  EXPECT_TRUE(differences_of_result(older.dump(), given).empty());
  EXPECT_EQ(choose_device(recorded_settings(older.dump(), "a run"), kOne).settings.device,
            TrainDevice::kCpu);
  given.device = TrainDevice::kCuda;
  expect_parts(refusal([&] { check_same_result(older.dump(), given, 7); }),
               {"device: \"cpu\" in the checkpoint, \"cuda\" now", "--allow-changes"});
  given.allow_changes = true;
  EXPECT_EQ(check_same_result(older.dump(), given, 7).size(), 1U);
}

}  // namespace
}  // namespace trireme::device_choice_test
