// Ranks of stale training, owners and servers too, are killed wherever that can be, and others take
// over what they had kept: the weights are those of a run in peace, bit for bit.

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "support/processes.h"

namespace trireme::stale_takeover_test {
namespace {

namespace fs = std::filesystem;
using testing::Finished;
using testing::read_file;

class StaleTakeover : public ::testing::Test {
 protected:
  StaleTakeover() { fs::create_directories(folder_); }
  ~StaleTakeover() override { fs::remove_all(folder_); }

  struct Job {
    int ranks, bound, servers, engines;
  };
  Finished run(const std::string& name, const Job& job, int seed) const {
    const auto& [ranks, bound, servers, engines] = job;
    std::vector<std::string> command = {
        testing::trireme_binary(), "run", "-n", std::to_string(ranks), "--restart", "99"};
    if (seed > 0) {
      for (const std::string& each : {std::string("--drill"),
                                      std::string("kill:p=0.4"),
                                      std::string("--drill-seed"),
                                      std::to_string(seed),
                                      std::string("--log-dir"),
                                      (folder_ / (name + "-log")).string()}) {
        command.push_back(each);
      }
    }
    for (const std::string& each : {std::string("--"),
                                    testing::test_binary("stale_worker"),
                                    (folder_ / name).string(),
                                    std::string("30"),
                                    std::to_string(bound),
                                    std::to_string(servers),
                                    std::to_string(seed > 0 ? 1 : 0),
                                    std::to_string(engines)}) {
      command.push_back(each);
    }
    return testing::run_program(command);
  }

  const fs::path folder_ =
      fs::temp_directory_path() / ("stale-takeover-" + std::to_string(getpid()));
};

TEST_F(StaleTakeover, HasTheWeightsOfARunInPeace) {
  std::set<std::string> moments;
  // Of the second of two engines, ranks 4 and 5 own nothing that is trained.
  const Job jobs[] = {{2, 2, 0, 1}, {3, 3, 1, 1}, {4, 0, 2, 1}, {6, 1, 0, 2}};
  for (const Job& each : jobs) {
    const std::string calm = "calm-" + std::to_string(each.ranks);
    const Finished peace = run(calm, each, 0);
    ASSERT_EQ(peace.code, 0) << peace.out << peace.err;
    for (const int seed : {3, 4}) {
      const std::string name = std::to_string(each.ranks) + "-" + std::to_string(seed);
      SCOPED_TRACE(name);
      const Finished finished = run(name, each, seed);
      ASSERT_EQ(finished.code, 0) << finished.out << finished.err;
      EXPECT_TRUE(read_file((folder_ / name).string()) == read_file((folder_ / calm).string()));
      const std::string drill = read_file((folder_ / (name + "-log") / "drill.json").string());
      for (const char* moment : {"before backward",
                                 "before the update",
                                 "before the state is kept",
                                 "before all know that the state is kept",
                                 "after the state is kept",
                                 "as a new world takes over the state"}) {
        if (drill.find(moment) != std::string::npos) {
          moments.insert(moment);
        }
      }
    }
  }
  EXPECT_EQ(moments.size(), 6U) << "not every moment was hit";
}

}  // namespace
}  // namespace trireme::stale_takeover_test
