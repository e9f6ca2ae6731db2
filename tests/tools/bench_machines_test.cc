// `trireme bench` across machines: that it measures, says what it measured, and leaves nothing.

#include <csignal>
#include <thread>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "support/machines.h"
#include "support/processes.h"

namespace trireme::bench_machines_test {
namespace {

using testing::Finished;
using testing::Machines;
using Json = nlohmann::json;

std::vector<std::string> collectives(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {testing::trireme_binary(), "bench", "collectives"});
  return arguments;
}

bool has_bed_of(pid_t pid) {
  const std::string beds = "\n" + testing::run_program({Machines::script(), "list"}).out;
  return beds.find("\nbench-" + std::to_string(pid) + "\n") != std::string::npos;
}

class BenchMachines : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto reason = Machines::unavailable("rate")) {
      GTEST_SKIP() << *reason;
    }
  }

  // Runs a benchmark on a test bed of its own; its JSON.
  Json rows_of(std::vector<std::string> command) {
    command.insert(command.end(), {"--json", json_path()});
    testing::Program program(command);
    done_ = program.wait();
    EXPECT_EQ(done_.code, 0) << done_.err;
    EXPECT_FALSE(has_bed_of(program.pid()));
    return Json::parse(testing::read_file(json_path()));
  }

  std::string json_path() const { return folder_.path() + "/rows.json"; }

  testing::TemporaryFolder folder_;
  Finished done_;
};

TEST_F(BenchMachines, MeasuresCollectivesOnATestBed) {
  const Json rows = rows_of(collectives({"--machines",
                                         "2",
                                         "--rounds",
                                         "1",
                                         "--op",
                                         "all_reduce",
                                         "broadcast",
                                         "--bytes",
                                         "4KiB",
                                         "1MiB"}));
  ASSERT_EQ(rows.size(), 8);  // in owned memory and in other
  for (const Json& row : rows) {
    EXPECT_EQ(row.at("machines"), 2);
    EXPECT_EQ(row.at("ranks"), 2);
    EXPECT_GT(row.at("best_ms").get<double>(), 0);
    EXPECT_LE(row.at("best_ms").get<double>(), row.at("ms").get<double>());
  }
  EXPECT_NE(done_.out.find("over eth0)"), std::string::npos) << done_.out;
  EXPECT_NE(done_.out.find("2 machines (network namespaces of one host) x 1 rank "),
            std::string::npos)
      << done_.out;
}

TEST_F(BenchMachines, ComparesOneInterfaceWithTwo) {
  const Json rows =
      rows_of(collectives({"--rails", "--rounds", "1", "--op", "all_gather", "--bytes", "256KiB"}));
  ASSERT_EQ(rows.size(), 2);
  for (const Json& row : rows) {
    EXPECT_DOUBLE_EQ(row.at("ratio").get<double>() * row.at("both_ms").get<double>(),
                     row.at("one_ms").get<double>());
  }
  EXPECT_NE(done_.out.find("over eth0, eth1)"), std::string::npos) << done_.out;
}

TEST_F(BenchMachines, RunsByHandAndMachineZeroPrints) {
  const Machines machines(2);
  const std::string meeting = machines.address(0) + ":29400";
  const auto start = [&](int machine) {
    return machines.run(machine,
                        collectives({"--nnodes",
                                     "2",
                                     "--node-rank",
                                     std::to_string(machine),
                                     "--rendezvous",
                                     meeting,
                                     "-n",
                                     "2",
                                     "--op",
                                     "all_gather",
                                     "--bytes",
                                     "4KiB"}),
                        {"TRIREME_TOKEN=of-this-test"});
  };
  const auto other = start(1);
  const auto first = start(0);
  const Finished printed = first->wait();
  const Finished silent = other->wait();
  EXPECT_EQ(printed.code, 0) << printed.err;
  EXPECT_EQ(silent.code, 0) << silent.err;
  EXPECT_NE(printed.out.find("2 machines x 2 ranks"), std::string::npos) << printed.out;
  EXPECT_NE(printed.out.find("\nall_gather"), std::string::npos) << printed.out;
  EXPECT_EQ(silent.out, "");
}

TEST_F(BenchMachines, LeavesNoMachinesWhenItIsInterrupted) {
  testing::Program program(collectives({"--machines", "2", "--rounds", "100"}));
  for (int i = 0; i < 500 && !has_bed_of(program.pid()); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ASSERT_TRUE(has_bed_of(program.pid()));
  kill(program.pid(), SIGINT);
  const Finished done = program.wait(std::chrono::seconds(60));
  EXPECT_EQ(done.code, 128 + SIGINT) << done.err;
  EXPECT_FALSE(has_bed_of(program.pid()));
}

TEST(BenchMachinesRefused, SaysWhatItExpected) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--machines", "1"}, "--machines"},
      {{"--machines", "2", "--nnodes", "2", "--rendezvous", "x:1"}, "one of them, found both"},
      {{"--peers", "--nnodes", "2", "--rendezvous", "x:1"}, "found --nnodes 2"},
      {{"--rails", "--peers"}, "--rails: expected none of"},
      {{"--op", "all_to_all"}, "all_to_all"},
  };
  for (const auto& [arguments, part] : cases) {
    const Finished done = testing::run_program(collectives(arguments));
    EXPECT_EQ(done.code, 2) << done.err;
    EXPECT_NE(done.err.find(part), std::string::npos) << done.err;
  }
}

}  // namespace
}  // namespace trireme::bench_machines_test
