// `trireme bench faults`: as many faults as were asked for, as far apart as was asked for.

#include <csignal>
#include <filesystem>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "support/processes.h"

namespace trireme::bench_faults_test {
namespace {

testing::Finished bench_faults(const std::vector<std::string>& more) {
  std::vector<std::string> words = {testing::trireme_binary(), "bench", "faults", "-n", "2"};
  words.insert(words.end(), more.begin(), more.end());
  return testing::run_program(words);
}

TEST(BenchFaults, InflictsAsManyAsAreAskedForInTheStepsThatTheyNeed) {
  const testing::TemporaryFolder folder;
  const std::string path = folder.path() + "/faults.json";
  const testing::Finished done = bench_faults({"--faults",
                                               "12",
                                               "--every",
                                               "4",
                                               "--json",
                                               path,
                                               "--layers",
                                               "1",
                                               "--width",
                                               "32",
                                               "--heads",
                                               "2",
                                               "--sequence",
                                               "16",
                                               "--batch",
                                               "4",
                                               "--micro-batch",
                                               "2"});
  ASSERT_EQ(done.code, 0) << done.out << done.err;
  EXPECT_NE(done.out.find("asked for: 12 faults, one every 4 steps on average; inflicted and "
                          "recovered from: 12, "),
            std::string::npos)
      << done.out;
  // 12 times 4 steps, and 60 beside them.
  EXPECT_NE(done.out.find(" of 108\n"), std::string::npos) << done.out;
  const nlohmann::json kinds = nlohmann::json::parse(testing::read_file(path));
  std::size_t all = 0;
  for (const nlohmann::json& kind : kinds) {
    all += kind.at("fault") == "all" ? kind.at("seconds").size() : 0;
  }
  EXPECT_EQ(all, 12);
}

// Told alone, as by kill, it takes its training with it; so it does with Ctrl-C.
TEST(BenchFaults, LeavesNothingBehindWhenItIsInterrupted) {
  const testing::TemporaryFolder folder;
  const std::string mark = "TMPDIR=" + folder.path();
  testing::Program program(
      {"env", "--default-signal=INT", testing::trireme_binary(), "bench", "faults", "-n", "2"},
      {mark});
  const auto trains = [&] {
    for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
      if (std::filesystem::exists(entry.path() / "faults/metrics.jsonl")) {
        return true;
      }
    }
    return false;
  };
  ASSERT_TRUE(testing::comes_true(trains)) << program.output();
  kill(program.pid(), SIGINT);
  EXPECT_EQ(program.wait().code, 128 + SIGINT);
  EXPECT_TRUE(testing::comes_true([&] { return testing::processes_with(mark).empty(); }));
  EXPECT_TRUE(testing::comes_true([&] { return std::filesystem::is_empty(folder.path()); }));
}

TEST(BenchFaults, RefusesStepsThatFollowFromTheFaults) {
  const testing::Finished steps = bench_faults({"--steps", "100"});
  EXPECT_EQ(steps.code, 2) << steps.out;
  EXPECT_NE(steps.err.find("--steps: expected --faults and --every"), std::string::npos)
      << steps.err;
  const testing::Finished peers = bench_faults({"--peers", "--every", "5"});
  EXPECT_EQ(peers.code, 2) << peers.out;
  EXPECT_NE(peers.err.find("--every: expected none with --peers"), std::string::npos) << peers.err;
}

}  // namespace
}  // namespace trireme::bench_faults_test
