#include <cmath>
#include <csignal>
#include <filesystem>
#include <set>
#include <thread>

#include <gtest/gtest.h>
#include <linux/magic.h>
#include <nlohmann/json.hpp>
#include <sys/vfs.h>
#include <unistd.h>

#include "support/processes.h"
#include "trireme/core/environment.h"

namespace trireme {
namespace {

using testing::Finished;
using Json = nlohmann::json;

class BenchCheckpoint : public ::testing::Test {
 protected:
  // A folder that the benchmark has to make, and to take away again.
  std::string place() const { return folder_.path() + "/some/where"; }
  std::string json_path() const { return folder_.path() + "/rows.json"; }

  std::vector<std::string> command(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(),
                     {testing::trireme_binary(), "bench", "checkpoint", "--folder", place()});
    return arguments;
  }

  Json rows(std::vector<std::string> arguments) const {
    arguments.insert(arguments.end(), {"--bytes", "1MB", "--rounds", "1", "--json", json_path()});
    const Finished done = testing::run_program(command(std::move(arguments)));
    EXPECT_EQ(done.code, 0) << done.err;
    EXPECT_FALSE(std::filesystem::exists(folder_.path() + "/some"));
    return Json::parse(testing::read_file(json_path()));
  }

  testing::TemporaryFolder folder_;
};

// Every field of a row, and that the derived ones are what they are called.
void expect_complete(const Json& row) {
  const std::string op = row.at("op");
  const double bytes = row.at("bytes");
  EXPECT_GT(bytes, 0.5e6) << op;
  EXPECT_LT(bytes, 2e6) << op;
  if (row.contains("missing")) {  // where the temporary folder has no disk
    EXPECT_EQ(op, "load_cold");
    EXPECT_TRUE(row.at("ms").is_null());
    return;
  }
  const auto expect_speed = [&](const Json& times) {
    const double ms = times.at("ms");
    EXPECT_GT(ms, 0) << op;
    EXPECT_LE(times.at("best_ms").get<double>(), ms) << op;
    if (op == "step_during_save") {
      EXPECT_TRUE(times.at("mb_s").is_null());
    } else {
      EXPECT_NEAR(times.at("mb_s").get<double>() * (ms / 1e3) * 1e6, bytes, 1e-6 * bytes) << op;
    }
  };
  expect_speed(row);
  EXPECT_FALSE(row.at("peers").empty()) << op;
  for (const auto& [name, peer] : row.at("peers").items()) {
    expect_speed(peer);
    EXPECT_NEAR(peer.at("ratio").get<double>() * row.at("ms").get<double>(),
                peer.at("ms").get<double>(),
                1e-6 * peer.at("ms").get<double>())
        << op << " beside " << name;
  }
}

std::set<std::string> names_of(const Json& rows, const std::string& op, int ranks) {
  std::set<std::string> names;
  for (const Json& row : rows) {
    if (row.at("op") == op && row.at("ranks") == ranks) {
      for (const auto& [name, peer] : row.at("peers").items()) {
        names.insert(name);
      }
    }
  }
  return names;
}

using Names = std::set<std::string>;

TEST_F(BenchCheckpoint, MeasuresEveryOperation) {
  const Json table = rows({"-n", "3"});
  ASSERT_EQ(table.size(), 6);
  for (const Json& row : table) {
    expect_complete(row);
  }
  EXPECT_EQ(names_of(table, "save", 3), Names({"plain write"}));
  EXPECT_EQ(names_of(table, "save_pause", 3), Names({"plain copy"}));
  EXPECT_EQ(names_of(table, "load_warm", 3), Names({"plain read"}));
  EXPECT_EQ(names_of(table, "step_during_save", 1), Names({"nothing saved"}));
  EXPECT_EQ(names_of(table, "step_during_save", 3), Names({"nothing saved"}));
}

TEST_F(BenchCheckpoint, StandsBesidePyTorch) {
  if (!env_string("TRIREME_TORCH_PYTHON")) {
    GTEST_SKIP() << "there is no Python with torch";
  }
  const Json table = rows({"--peers"});
  for (const Json& row : table) {
    expect_complete(row);
  }
  EXPECT_EQ(
      names_of(table, "save", 2),
      Names({"plain write", "torch.save", "torch.save, no fsync", "dcp.save", "dcp.save, tuned"}));
  EXPECT_EQ(names_of(table, "save_pause", 2),
            Names({"plain copy", "dcp.async_save", "dcp.async_save, tuned"}));
  EXPECT_EQ(names_of(table, "load_warm", 2),
            Names({"plain read", "torch.load", "torch.load, mmap", "dcp.load"}));
}

TEST_F(BenchCheckpoint, LeavesNothingBehindWhenItIsInterrupted) {
  testing::Program program(command({"--rounds", "100", "--bytes", "1MB"}));
  for (int i = 0; i < 1000 && !std::filesystem::exists(place()); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ASSERT_TRUE(std::filesystem::exists(place()));
  std::this_thread::sleep_for(std::chrono::seconds(2));  // anywhere in its work
  kill(program.pid(), SIGINT);
  EXPECT_EQ(program.wait().code, 128 + SIGINT);
  EXPECT_FALSE(std::filesystem::exists(folder_.path() + "/some"));
}

// An installed program knows no build folder.
TEST_F(BenchCheckpoint, WritesIntoTheCurrentFolderUnlessToldOtherwise) {
  const auto run_in = [](const std::string& folder) {
    return testing::run_program({"env",
                                 "-C",
                                 folder,
                                 testing::trireme_binary(),
                                 "bench",
                                 "checkpoint",
                                 "--bytes",
                                 "1MB",
                                 "--rounds",
                                 "1",
                                 "-n",
                                 "1"});
  };
  const Finished done = run_in(folder_.path());
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_NE(done.err.find("checkpoints are written to ./trireme-bench-"), std::string::npos)
      << done.err;
  EXPECT_NE(done.out.find(" 1 rank, "), std::string::npos) << done.out;
  EXPECT_NE(done.out.find(" of 1 round\n"), std::string::npos) << done.out;
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

TEST_F(BenchCheckpoint, SaysThatMemoryIsNoDisk) {
  struct statfs system {};
  ASSERT_EQ(statfs("/dev/shm", &system), 0);
  ASSERT_EQ(system.f_type, TMPFS_MAGIC) << "this test needs a /dev/shm in memory";
  const std::string memory = "/dev/shm/trireme-test-" + std::to_string(getpid());
  const Finished done = testing::run_program({testing::trireme_binary(),
                                              "bench",
                                              "checkpoint",
                                              "--bytes",
                                              "1MB",
                                              "--rounds",
                                              "1",
                                              "--folder",
                                              memory});
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_FALSE(std::filesystem::exists(memory));
  for (const std::string& text : {done.out, done.err}) {
    EXPECT_NE(text.find("in memory, not on a disk"), std::string::npos) << text;
    EXPECT_NE(text.find("--folder"), std::string::npos) << text;
  }
}

TEST_F(BenchCheckpoint, RefusesWhatItCannotMeasure) {
  const Finished small = testing::run_program(command({"--bytes", "10"}));
  EXPECT_EQ(small.code, 2);
  EXPECT_NE(small.err.find("--bytes"), std::string::npos) << small.err;
  const Finished large = testing::run_program(command({"--bytes", "1000TB"}));
  EXPECT_EQ(large.code, 1);
  EXPECT_NE(large.err.find("expected space for"), std::string::npos) << large.err;
  EXPECT_FALSE(std::filesystem::exists(folder_.path() + "/some"));
  const Finished nowhere = testing::run_program(
      {testing::trireme_binary(), "bench", "checkpoint", "--folder", "/proc/none"});
  EXPECT_EQ(nowhere.code, 1);
  EXPECT_NE(nowhere.err.find("/proc/none"), std::string::npos) << nowhere.err;
}

}  // namespace
}  // namespace trireme
