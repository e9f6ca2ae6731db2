// trireme train --sync stale|async: a parameter server, in a run as in any other.

#include <csignal>
#include <numeric>

#include <unistd.h>

#include "tools/train_runs.h"

namespace trireme::train_stale_test {
namespace {

namespace fs = std::filesystem;
using testing::expect_parts;
using testing::Finished;
using testing::Json;
using testing::processes_with;
using testing::Program;
using testing::read_file;
using testing::run_program;
using testing::trireme_binary;
using testing::Words;

class TrainStale : public testing::TrainRuns {
 protected:
  std::string weights(const std::string& run) const {
    return read_file(path(run) + "/model.safetensors");
  }
  std::string settings(const std::string& sync) const {
    return gpt() + "--batch 16 --steps 10 --schedule constant -n 2 --eval-every 4 --sync " + sync;
  }

  // Ctrl-C, or SIGKILL to everything, when the run has said this.
  void end_after(const std::string& run, const std::string& flags, int number, const char* text) {
    signal(SIGINT, SIG_DFL);  // a shell may have had it ignored
    const std::string mark = testing::unique_mark();
    Program program(command(run, flags), {mark});
    ASSERT_TRUE(program.wait_for_output(text));
    if (number == SIGINT) {
      kill(program.pid(), SIGINT);
      EXPECT_EQ(program.wait().code, 128 + SIGINT);
      return;
    }
    for (const pid_t each : processes_with(mark)) {
      kill(each, SIGKILL);
    }
    program.wait();
    EXPECT_TRUE(testing::comes_true([&] { return processes_with(mark).empty(); }));
  }
  Finished resume(const std::string& run) const {
    return run_program({trireme_binary(), "train", "--resume", path(run)});
  }
  // The losses of a run's steps and evaluations up to this step.
  Words history_up_to(const std::string& run, std::int64_t last) const {
    Words lines;
    for (const std::string& line : testing::history(path(run))) {
      if (testing::parse_json(line).at("step").get<std::int64_t>() <= last) {
        lines.push_back(line);
      }
    }
    return lines;
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

// Ended in any step, in any way, and resumed: what came after the checkpoint counts once.
TEST_F(TrainStale, ReplaysARunThatWasResumed) {
  const std::string async = settings("async --save-every 7 --steps 300 --log-every 1");
  for (const int number : {SIGINT, SIGKILL}) {
    SCOPED_TRACE(number);
    const std::string run = "run-" + std::to_string(number);
    end_after(run, async, number, "step 20/");
    end_after(run, async, number, "step 60/");
    const Finished resumed = resume(run);
    ASSERT_EQ(resumed.code, 0) << resumed.out << resumed.err;
    train_well(run + "-replay", async + " --replay " + path(run));
    EXPECT_TRUE(weights(run + "-replay") == weights(run));
    EXPECT_EQ(history_up_to(run + "-replay", 300), history_up_to(run, 300));
    EXPECT_EQ(summary(run + "-replay").at("stopped_early"), false);
  }
}

TEST_F(TrainStale, ReplaysARunThatWasInterruptedUpToItsEnd) {
  const std::string async = settings("async --steps 300 --log-every 1");
  end_after("run", async, SIGINT, "step 20/");
  const std::int64_t steps = summary("run").at("steps");
  ASSERT_LT(steps, 300);
  const std::string message = "stopping: the record of the run in " + path("run") + " ends after " +
                              std::to_string(steps) + " steps of 300";
  const std::string replay = async + " --save-every 0 --replay " + path("run");
  const Finished finished = train("replay", replay);
  EXPECT_EQ(finished.code, 0) << finished.out << finished.err;
  expect_parts(finished.out, {message});
  EXPECT_EQ(finished.out.find("other bits"), std::string::npos) << finished.out;
  EXPECT_EQ(summary("replay").at("steps"), steps);
  EXPECT_EQ(summary("replay").at("stopped_early"), true);
  EXPECT_TRUE(weights("replay") == weights("run"));
}

// Each rank has recorded as much as it did: a replay goes as far as all of them.
TEST_F(TrainStale, ReplaysARunThatWasKilledUpToItsEnd) {
  const std::string async = settings("async --save-every 10 --steps 300 --log-every 1");
  end_after("run", async, SIGKILL, "step 45/");
  const Finished finished = train("replay", async + " --replay " + path("run"));
  EXPECT_EQ(finished.code, 0) << finished.out << finished.err;
  expect_parts(finished.out,
               {"stopping: the record of the run in " + path("run") + " ends after "});
  const std::int64_t steps = summary("replay").at("steps");
  EXPECT_GE(steps, 40);
  EXPECT_LT(steps, 300);
  EXPECT_EQ(history_up_to("replay", 40), history_up_to("run", 40));
  // It is saved where its run was, and at its end.
  const Finished again = resume("replay");
  EXPECT_EQ(again.code, 0) << again.out << again.err;
  EXPECT_EQ(summary("replay").at("steps"), steps);
}

TEST_F(TrainStale, AReplayThatWasInterruptedGoesOnWhereItsRunWasSaved) {
  const std::string async = settings("async --save-every 10 --steps 200 --log-every 1");
  train_well("run", async);
  const std::string replay = async + " --replay " + path("run");
  end_after("replay", replay, SIGINT, "step 25/");
  const std::int64_t steps = summary("replay").at("steps");
  ASSERT_LT(steps, 200);
  if (steps % 10 != 0) {
    expect_parts(read_file(path("replay") + "/train.log"),
                 {"no checkpoint after step " + std::to_string(steps)});
  }
  const Finished resumed = resume("replay");
  EXPECT_EQ(resumed.code, 0) << resumed.out << resumed.err;
  EXPECT_TRUE(weights("replay") == weights("run"));
}

// A record of other settings is of another run, from where they changed on.
TEST_F(TrainStale, DoesNotReplayARunWhoseSettingsChanged) {
  const std::string async = settings("async --save-every 6");
  train_well("run", async + " --steps 6");
  train_well("run", async + " --batch 32 --allow-changes");
  const Finished finished = train("replay", async + " --batch 32 --replay " + path("run"));
  EXPECT_EQ(finished.code, 2) << finished.out << finished.err;
  expect_parts(finished.err, {"--replay", "begins after step 6", "other settings"});
  EXPECT_FALSE(fs::exists(path("replay")));
  const Finished itself = train("run", async + " --batch 32 --replay " + path("run"));
  EXPECT_EQ(itself.code, 2) << itself.out << itself.err;
  expect_parts(itself.err, {"--replay", "is the run itself"});
  // Nor one of which there is nothing.
  data_.write("run/arrivals/rank-1.txt", "");
  const Finished empty = train("replay", async + " --batch 32 --replay " + path("run"));
  EXPECT_EQ(empty.code, 2) << empty.out << empty.err;
  expect_parts(empty.err, {"is not a record of arrivals"});
  EXPECT_FALSE(fs::exists(path("replay")));
}

// A run that begins anew has done nothing of what its first attempt recorded.
TEST_F(TrainStale, AnAttemptThatIsForgottenIsNotReplayed) {
  const std::string async = settings("async --save-every 1000 --steps 2000 --log-every 1");
  end_after("run", async, SIGKILL, "step 20/");
  ASSERT_TRUE(fs::exists(path("run") + "/arrivals/rank-0.txt"));
  data_.write("run/arrivals/rank-9.txt", "of the first attempt");
  end_after("run", async, SIGKILL, "step 3/");
  EXPECT_TRUE(fs::exists(path("run") + "/arrivals/rank-0.txt"));
  EXPECT_FALSE(fs::exists(path("run") + "/arrivals/rank-9.txt"));
}

// What all ranks are asked at once they need not hear of each other: it came 24 steps late, which
// no run that was shorter ever heard.
TEST_F(TrainStale, EndsWithTheStepInWhichAllAreAskedTo) {
  end_after("run",
            settings("async --batch 512 --micro-batch 4 --stride 1 --steps 24 --eval-every 99 "
                     "--log-every 1"),
            SIGINT,
            "step 3/");
  EXPECT_EQ(summary("run").at("status"), "interrupted");
  EXPECT_LT(summary("run").at("steps"), 24);
}

TEST_F(TrainStale, SaysOfAllPartsOfARunHowStaleItWas) {
  const std::string async = settings("async --save-every 4");
  train_well("run", async);
  const Json once = summary("run").at("stale");
  train_well("run", async);
  EXPECT_EQ(summary("run").at("stale"), once);
  train_well("halves", async + " --steps 4");
  train_well("halves", async + " --allow-changes");
  const auto counts =
      summary("halves").at("stale").at("staleness").get<std::vector<std::int64_t>>();
  EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}), 40);
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
