// trireme train --device where there is no GPU, or where none is to be seen (tests/CMakeLists.txt).

#include <filesystem>

#include "tools/train_runs.h"

namespace trireme::train_device_test {
namespace {

namespace fs = std::filesystem;
using testing::expect_parts;
using testing::Finished;
using testing::read_file;
using testing::run_program;
using testing::trireme_binary;

class TrainDevice : public testing::TrainRuns {};

TEST_F(TrainDevice, IsTheCpuWithoutAWordWhereThereIsNoGpu) {
  const Finished finished = train("plain", mlp() + "--steps 3 --save-every 2");
  ASSERT_EQ(finished.code, 0) << finished.err;
  EXPECT_EQ(finished.err, "");
  EXPECT_EQ(finished.out.find("GPU"), std::string::npos) << finished.out;
  EXPECT_EQ(testing::read_json(path("plain") + "/config.json").at("device"), "cpu");
  const testing::Words named = train_well("named", mlp() + "--steps 3 --device cpu");
  EXPECT_EQ(named, testing::history(path("plain")));
}

TEST_F(TrainDevice, IsRefusedWhereItIsAGpuAndThereIsNone) {
  const Finished finished = train("none", mlp() + "--steps 3 --device cuda");
  EXPECT_EQ(finished.code, 2);
  expect_parts(finished.err, {"--device: expected a GPU", "found none: ", "--device cpu"});
  EXPECT_EQ(finished.out, "");
  EXPECT_FALSE(fs::exists(path("none"))) << "nothing is left";
}

TEST_F(TrainDevice, IsNoWordThatItDoesNotKnow) {
  const Finished finished = train("none", mlp() + "--steps 3 --device gpu");
  EXPECT_EQ(finished.code, 2);
  expect_parts(finished.err, {"--device: expected", "auto", "cpu", "cuda", "found \"gpu\""});
  EXPECT_FALSE(fs::exists(path("none")));
}

// A run of a version without the setting, and one that a machine with a GPU has begun.
TEST_F(TrainDevice, OfARunIsKeptWhenItIsResumed) {
  train_well("run", mlp() + "--steps 2 --save-every 2");
  const std::string config = path("run") + "/config.json";
  testing::Json older = testing::read_json(config);
  older.erase("device");
  older["steps"] = 4;
  data_.write("run/config.json", older.dump());
  fs::remove(path("run") + "/summary.json");
  const Finished finished =
      run_program({trireme_binary(), "train", "--resume", path("run"), "--allow-changes"});
  EXPECT_EQ(finished.code, 0) << finished.err;
  expect_parts(finished.out, {"resuming after step 2"});
  EXPECT_EQ(finished.out.find("device"), std::string::npos) << finished.out;

  older["device"] = "cuda";
  older["steps"] = 6;
  data_.write("run/config.json", older.dump());
  const Finished refused =
      run_program({trireme_binary(), "train", "--resume", path("run"), "--allow-changes"});
  EXPECT_EQ(refused.code, 2);
  expect_parts(refused.err, {"device (--device): expected a GPU", "--device cpu --allow-changes"});
}

TEST_F(TrainDevice, IsAskedForByPredictAndSample) {
  train_well("images", mlp() + "--steps 2");
  const testing::Words predict = {
      trireme_binary(), "predict", path("images"), "--data", data_.path(), "--device"};
  testing::Words on_cpu = predict;
  on_cpu.emplace_back("cpu");
  EXPECT_EQ(run_program(on_cpu).code, 0);
  testing::Words on_gpu = predict;
  on_gpu.emplace_back("cuda");
  const Finished refused = run_program(on_gpu);
  EXPECT_EQ(refused.code, 2);
  expect_parts(refused.err, {"--device: expected a GPU", "--device cpu"});

  // Of a run that was trained on one: on the CPU, which is said.
  testing::Json config = testing::read_json(path("images") + "/config.json");
  config["device"] = "cuda";
  data_.write("images/config.json", config.dump());
  const Finished elsewhere =
      run_program({trireme_binary(), "predict", path("images"), "--data", data_.path()});
  EXPECT_EQ(elsewhere.code, 0);
  expect_parts(elsewhere.err, {"the run was trained on a GPU", "computed on the CPU"});
  EXPECT_EQ(elsewhere.out, run_program(on_cpu).out);
}

}  // namespace
}  // namespace trireme::train_device_test
