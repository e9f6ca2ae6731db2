// `trireme bench sync`: that it measures every mode beside its ceiling, counts the bytes of the
// formula, refuses what it cannot do, and leaves nothing. No test looks at a time.

#include <chrono>
#include <csignal>
#include <filesystem>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "support/machines.h"
#include "support/processes.h"

namespace trireme::bench_sync_test {
namespace {

using testing::Finished;
using testing::Machines;
using Json = nlohmann::json;

std::vector<std::string> bench_sync(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {testing::trireme_binary(), "bench", "sync"});
  return arguments;
}

// Of the small GPT of bench/sync_rank.cc: two embeddings and the head, then of each layer four
// matrices with biases and two norms, and the last norm.
double parameters() {
  const double vocabulary = 64;
  const double sequence = 16;
  const double width = 64;
  const double layers = 2;
  return (2 * vocabulary + sequence) * width + layers * (12 * width * width + 13 * width) +
         2 * width;
}

Json rows_of(const std::vector<std::string>& arguments, Finished& done) {
  const testing::TemporaryFolder folder;
  const std::string path = folder.path() + "/rows.json";
  std::vector<std::string> command = bench_sync({"--smoke", "--json", path});
  command.insert(command.end(), arguments.begin(), arguments.end());
  done = testing::run_program(command);
  EXPECT_EQ(done.code, 0) << done.out << done.err;
  return done.code == 0 ? Json::parse(testing::read_file(path)) : Json::object();
}

std::vector<std::string> modes_of(const Json& rows) {
  std::vector<std::string> modes;
  for (const Json& row : rows) {
    modes.push_back(row.at("sync"));
  }
  return modes;
}

TEST(BenchSync, CountsWhatEveryModeSendsOverTheLink) {
  if (const auto reason = Machines::unavailable("rate")) {
    GTEST_SKIP() << *reason;
  }
  Finished done;
  const Json all = rows_of({"--only", "link"}, done);
  ASSERT_EQ(all.size(), 1) << all;
  const Json rows = all.at("link");
  EXPECT_EQ(
      modes_of(rows),
      (std::vector<std::string>{"exact", "local:4", "diloco:4", "gossip:4", "stale:3", "async"}));
  const double whole = 4 * parameters();
  for (const Json& row : rows) {
    const std::string mode = row.at("sync");
    EXPECT_EQ(row.at("parameters").get<double>(), parameters());
    // Between two ranks, all of these send each parameter once: half of them, and half of the sums,
    // averages or answers. Averages do so in every fourth step.
    const double formula = mode.find(":4") == std::string::npos ? whole : whole / 4;
    EXPECT_DOUBLE_EQ(row.at("formula_bytes").get<double>(), formula) << mode;
    // The ledger of stale training has gradients only. Both have a few bytes of messages beside.
    const bool stale = mode == "async" || mode == "stale:3";
    const double ledger = stale ? formula / 2 : formula;
    EXPECT_NEAR(row.at("ledger_bytes").get<double>(), ledger, 0.02 * ledger) << mode;
    // The interfaces count headers and acknowledgements, too; of steps and a barrier.
    EXPECT_GT(row.at("interface_bytes").get<double>(), 0.99 * formula) << mode;
    EXPECT_LT(row.at("interface_bytes").get<double>(), 1.15 * formula) << mode;
    EXPECT_GT(row.at("ms").get<double>(), 0) << mode;
    EXPECT_GT(row.at("link_allows_ms").get<double>(), row.at("alone_ms").get<double>()) << mode;
  }
}

TEST(BenchSync, TrainsToALossWithAndWithoutAverages) {
  if (const auto reason = Machines::unavailable("rate")) {
    GTEST_SKIP() << *reason;
  }
  Finished done;
  const Json rows = rows_of({"--only", "loss"}, done).at("loss");
  ASSERT_EQ(modes_of(rows), (std::vector<std::string>{"exact", "local:4"}));
  for (const Json& row : rows) {
    ASSERT_EQ(row.at("losses").size(), 2) << row;
    for (const Json& loss : row.at("losses")) {
      EXPECT_GT(loss.get<double>(), 0);
      EXPECT_LT(loss.get<double>(), 8);
    }
  }
  EXPECT_NE(rows[0].at("losses"), rows[1].at("losses"));
  EXPECT_DOUBLE_EQ(rows[0].at("sent_bytes").get<double>(),
                   4 * rows[1].at("sent_bytes").get<double>());
  EXPECT_NE(done.out.find("loss of local:4 - exact: "), std::string::npos) << done.out;
}

TEST(BenchSync, DealsMicroBatchesByMeasuredTimesToASlowRank) {
  Finished done;
  const Json rows = rows_of({"--only", "slow-rank"}, done).at("slow-rank");
  ASSERT_EQ(modes_of(rows), (std::vector<std::string>{"exact", "stale:3", "balance"}));
  EXPECT_EQ(rows[0].at("micro_batches"), Json({2, 2}));
  EXPECT_EQ(rows[1].at("micro_batches"), Json({2, 2}));
  EXPECT_EQ(rows[2].at("micro_batches"), Json({3, 1}));
  for (const Json& row : rows) {
    EXPECT_GT(row.at("slow_ms").get<double>(), row.at("fast_ms").get<double>());
    EXPECT_GT(row.at("allowed").get<double>(), 0);
    EXPECT_GT(row.at("throughput").get<double>(), 0);
  }
}

TEST(BenchSync, StallsAlikeInAllModes) {
  Finished done;
  const Json rows = rows_of({"--only", "stalls"}, done).at("stalls");
  ASSERT_EQ(modes_of(rows), (std::vector<std::string>{"exact", "stale:3", "async"}));
  // Whoever waits less may be done sooner.
  EXPECT_GE(rows[0].at("allowed").get<double>(), rows[1].at("allowed").get<double>());
  EXPECT_GE(rows[1].at("allowed").get<double>(), rows[2].at("allowed").get<double>());
  EXPECT_GT(rows[2].at("allowed").get<double>(), 1);
}

TEST(BenchSync, RefusesWrongUsageByName) {
  for (const std::vector<std::string>& wrong : {std::vector<std::string>{"--only", "nosuch"},
                                                {"--rounds", "0"},
                                                {"--loss-steps", "33"},
                                                {"--peers", "--only", "stalls"},
                                                {"--sync-every", "1"},
                                                {"--bogus"},
                                                {"more"}}) {
    const Finished done = testing::run_program(bench_sync(wrong));
    EXPECT_EQ(done.code, 2) << wrong.front() << ": " << done.err;
    EXPECT_NE(done.err.find(wrong.front()), std::string::npos) << done.err;
    EXPECT_NE(done.err.find(wrong.back()), std::string::npos) << done.err;
  }
  EXPECT_EQ(testing::run_program(bench_sync({"--help"})).code, 0);
}

TEST(BenchSync, LeavesNothingBehindWhenItIsInterrupted) {
  if (const auto reason = Machines::unavailable("rate")) {
    GTEST_SKIP() << *reason;
  }
  const testing::TemporaryFolder folder;
  const std::string mark = "TMPDIR=" + folder.path();
  std::vector<std::string> command =
      bench_sync({"--smoke", "--only", "link", "--steps", "1000", "--rounds", "100"});
  command.insert(command.begin(), {"env", "--default-signal=INT"});
  testing::Program program(command, {mark});
  const auto has_measured = [&] {
    for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
      if (std::filesystem::exists(entry.path() / "link.json")) {
        return true;
      }
    }
    return false;
  };
  ASSERT_TRUE(testing::comes_true(has_measured)) << program.output();
  kill(program.pid(), SIGINT);
  EXPECT_EQ(program.wait(std::chrono::seconds(60)).code, 128 + SIGINT);
  const std::string beds = "\n" + testing::run_program({Machines::script(), "list"}).out;
  EXPECT_EQ(beds.find("\nbench-" + std::to_string(program.pid()) + "\n"), std::string::npos)
      << beds;
  EXPECT_TRUE(testing::comes_true([&] { return testing::processes_with(mark).empty(); }));
  EXPECT_TRUE(testing::comes_true([&] { return std::filesystem::is_empty(folder.path()); }));
}

}  // namespace
}  // namespace trireme::bench_sync_test
