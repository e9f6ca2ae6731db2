// What the models reach on Fashion-MNIST itself, in the commands that the documentation names.

#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "support/processes.h"

namespace trireme {
namespace {

double accuracy_of(const std::vector<std::string>& flags) {
  const testing::TemporaryFolder folder;
  const std::string run = folder.path() + "/run";
  std::vector<std::string> command = {
      testing::trireme_binary(), "train", "--run", run, "--log-every", "100000"};
  command.insert(command.end(), flags.begin(), flags.end());
  const testing::Finished finished = testing::run_program(command);
  EXPECT_EQ(finished.code, 0) << finished.err;
  std::ifstream file(run + "/summary.json");
  return nlohmann::json::parse(file).at("metrics").at("accuracy").get<double>();
}

TEST(TrainAccuracy, AnMlpReaches88Percent) {
  EXPECT_GE(accuracy_of({"--model", "mlp"}), 0.88);
}

TEST(TrainAccuracy, AConvnetReaches91Percent) {
  EXPECT_GE(accuracy_of({"-n", "2", "--model", "convnet"}), 0.91);
}

}  // namespace
}  // namespace trireme
