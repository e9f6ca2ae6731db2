// `trireme bench step --machines`: the bytes that it counts are those of the formula.

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "support/machines.h"
#include "support/processes.h"

namespace trireme {
namespace {

using testing::Finished;
using testing::Machines;
using Json = nlohmann::json;

// Of the GPTs of bench/step_settings.h: two embeddings and the head, then of each layer four
// matrices with biases and two norms, and the last norm.
double parameters_of(const std::string& setting) {
  const bool communicates = setting == "communication-bound";
  const double vocabulary = 512;
  const double sequence = communicates ? 64 : 128;
  const double width = communicates ? 512 : 256;
  const double layers = communicates ? 8 : 4;
  return (2 * vocabulary + sequence) * width + layers * (12 * width * width + 13 * width) +
         2 * width;
}

TEST(BenchStepMachines, CountsWhatGoesFromMachineToMachine) {
  if (const auto reason = Machines::unavailable()) {
    GTEST_SKIP() << *reason;
  }
  const testing::TemporaryFolder folder;
  const std::string path = folder.path() + "/rows.json";
  const Finished done = testing::run_program({testing::trireme_binary(),
                                              "bench",
                                              "step",
                                              "--machines",
                                              "2",
                                              "--only",
                                              "ddp",
                                              "--rounds",
                                              "1",
                                              "--json",
                                              path});
  ASSERT_EQ(done.code, 0) << done.err;
  const Json rows = Json::parse(testing::read_file(path));
  ASSERT_EQ(rows.size(), 2);
  for (const Json& row : rows) {
    // An all_reduce of two ranks: each sends half of its gradients, and half of the sums.
    const double expected = 2 * 4 * parameters_of(row.at("setting"));
    EXPECT_NEAR(row.at("network_bytes").get<double>(), expected, 0.01 * expected);
    // The interfaces count headers and acknowledgements, too.
    EXPECT_GT(row.at("interface_bytes").get<double>(), 0.99 * expected);
    EXPECT_LT(row.at("interface_bytes").get<double>(), 1.1 * expected);
  }
}

TEST(BenchStep, EndsWithTwoForWrongUsage) {
  for (const std::vector<std::string>& wrong :
       {std::vector<std::string>{"--only", "nosuch"}, {"--rounds", "0"}, {"--bogus"}, {"more"}}) {
    for (const char* what : {"step", "optim", "checkpoint"}) {
      std::vector<std::string> command = {testing::trireme_binary(), "bench", what};
      command.insert(command.end(), wrong.begin(), wrong.end());
      const Finished done = testing::run_program(command);
      EXPECT_EQ(done.code, 2) << what << " " << wrong.front() << ": " << done.err;
      EXPECT_NE(done.err.find(wrong.back()), std::string::npos) << done.err;
    }
  }
  EXPECT_EQ(testing::run_program({testing::trireme_binary(), "bench", "step", "--help"}).code, 0);
}

TEST(BenchStepMachines, RefusesModesOfOneMachine) {
  const Finished done = testing::run_program(
      {testing::trireme_binary(), "bench", "step", "--machines", "2", "--only", "single"});
  EXPECT_EQ(done.code, 2);
  EXPECT_NE(done.err.find("expected a mode for several machines"), std::string::npos) << done.err;
}

}  // namespace
}  // namespace trireme
