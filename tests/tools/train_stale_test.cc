// trireme train --sync stale|async: a parameter server, in a run as in any other.

#include <numeric>

#include "tools/train_runs.h"

namespace trireme::train_stale_test {
namespace {

namespace fs = std::filesystem;
using testing::expect_parts;
using testing::Finished;
using testing::Json;
using testing::read_file;
using testing::Words;

class TrainStale : public testing::TrainRuns {
 protected:
  std::string weights(const std::string& run) const {
    return read_file(path(run) + "/model.safetensors");
  }
  std::string settings(const std::string& sync) const {
    return gpt() + "--batch 16 --steps 10 --schedule constant -n 2 --eval-every 4 --sync " + sync;
  }
};

// With no staleness, a rank's micro-batch each, and one server more or not: synchronous training.
TEST_F(TrainStale, WithoutStalenessIsExact) {
  const std::string one_each = " --micro-batch 8 --clip-norm 0";
  train_well("exact", settings("exact") + one_each);
  for (const std::string flags : {"", " --servers 1 -n 3", " --zero 2"}) {
    train_well("stale", settings("stale --staleness 0") + one_each + flags);
    EXPECT_TRUE(weights("stale") == weights("exact")) << flags;
    fs::remove_all(path("stale"));
  }
}

TEST_F(TrainStale, GivesTheSameRunAgainAndFromACheckpoint) {
  const std::string sync = settings("stale --staleness 2 --save-every 6");
  const Finished finished = train("whole", sync);
  EXPECT_EQ(finished.code, 0) << finished.out << finished.err;
  expect_parts(finished.out + finished.err,
               {"staleness", "updates on average, 2 at most", "waited for"});
  train_well("again", sync + " --servers 0");
  EXPECT_TRUE(weights("again") == weights("whole"));
  train_well("halves", sync + " --steps 6");
  train_well("halves", sync + " --allow-changes");
  EXPECT_TRUE(weights("halves") == weights("whole"));
  train_well("exact", settings("exact"));
  EXPECT_FALSE(weights("exact") == weights("whole"));

  const Json use = summary("whole").at("stale");
  EXPECT_EQ(use.at("mode"), "stale");
  const auto staleness = use.at("staleness").get<std::vector<std::int64_t>>();
  // Two workers and two owners; after the save in step 6, as at the beginning, weights are new.
  EXPECT_EQ(std::vector<std::int64_t>(staleness.begin(), staleness.begin() + 4),
            (std::vector<std::int64_t>{8, 8, 24, 0}));
  EXPECT_EQ(use.at("held_up_seconds").size(), 2U);
  std::int64_t sent = 0;
  for (const Json& line : testing::read_json_lines(path("whole") + "/metrics.jsonl")) {
    sent += line.value("sent_bytes", std::int64_t{0});
  }
  EXPECT_GT(sent, 0);
}

TEST_F(TrainStale, ReplaysARun) {
  for (const std::string sync : {"async", "stale --order arrival --staleness 1 --servers 1 -n 3"}) {
    const std::string first = "first-" + sync.substr(0, 5);
    train_well(first, settings(sync));
    train_well(first + "-replay", settings(sync + " --replay " + path(first)));
    EXPECT_TRUE(weights(first + "-replay") == weights(first)) << sync;
    const auto counts = summary(first).at("stale").at("staleness").get<std::vector<std::int64_t>>();
    // Each worker's gradients of each step, once with each owner.
    EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}),
              sync == "async" ? 40 : 20);
  }
  // Also one that was resumed: its record goes on where it was saved.
  const std::string saved = settings("async --save-every 6");
  train_well("resumed", saved + " --steps 6");
  train_well("resumed", saved + " --allow-changes");
  train_well("resumed-replay", saved + " --replay " + path("resumed"));
  EXPECT_TRUE(weights("resumed-replay") == weights("resumed"));
  const std::pair<std::string, Words> wrong[] = {
      {"--seed 7", {"--replay: the run in", "seed", "7 now"}},
      {"-n 4", {"--replay: the run in", "ranks"}},
      {"--steps 11", {"--replay: the run in", "steps"}}};
  for (const auto& [flags, parts] : wrong) {
    const Finished finished =
        train("wrong", settings("async --replay " + path("first-async")) + " " + flags);
    EXPECT_EQ(finished.code, 2) << flags << finished.out << finished.err;
    expect_parts(finished.err, parts);
    EXPECT_FALSE(fs::exists(path("wrong")));
    EXPECT_EQ(finished.err.find("replicas"), std::string::npos) << finished.err;
  }
}

// A rank that is lost, an owner of weights, is what a checkpoint is for.
TEST_F(TrainStale, GoesOnFromACheckpointAfterALoss) {
  const std::string sync = settings("stale --save-every 2");
  train_well("calm", sync);
  train_well("lost", sync + " --restart 9 --drill kill:p=0.2 --drill-seed 3");
  EXPECT_TRUE(weights("lost") == weights("calm"));
  EXPECT_NE(read_file(path("lost") + "/drill.json").find("\"kind\": \"kill\""), std::string::npos);
}

TEST_F(TrainStale, RefusesByName) {
  const std::pair<std::string, Words> wrong[] = {
      {"--sync stale --staleness -1", {"--staleness: expected", "-1"}},
      {"--sync stale --order random", {"--order: expected clock, arrival", "random"}},
      {"--sync stale --servers 4", {"--servers: expected fewer than the 4 ranks", "found 4"}},
      {"--sync async --staleness 2", {"--staleness", "the sync async does not use it"}},
      {"--staleness 2", {"--staleness", "the sync exact does not use it"}},
      {"--sync async --replay nowhere", {"--replay: expected the folder of a run"}},
      {"--sync stale --replay nowhere", {"--replay: with order = clock"}},
      {"--sync stale --zero 3", {"--zero: stage 3"}},
      {"--sync stale --compress int8", {"--compress: gradients go to their owners"}},
      {"--sync stale --optimizer lamb", {"--optimizer: lamb looks at whole parameters"}},
      {"--sync stale --histogram-every 2", {"--histogram-every: no rank has"}},
      {"--sync stale --balance measured", {"--balance: measured"}},
      {"--sync stale --micro-batch auto", {"--micro-batch: auto"}},
      {"--sync stale --batch 6", {"a multiple of 4 micro-batches", "found 3", "--servers"}},
      {"--sync async --elastic 2:4", {"--elastic: with --sync async", "--restart N alone"}}};
  for (const auto& [flags, parts] : wrong) {
    const Finished finished = train("wrong", gpt() + "--steps 2 -n 4 " + flags);
    EXPECT_EQ(finished.code, 2) << flags << finished.out << finished.err;
    expect_parts(finished.err, parts);
  }
}

}  // namespace
}  // namespace trireme::train_stale_test
