// trireme train --elastic: ranks are lost, and the result is that of a run that lost none.

#include <algorithm>
#include <csignal>
#include <filesystem>

#include "tools/train_runs.h"

namespace trireme::train_elastic_test {
namespace {

using testing::expect_parts;
using testing::Finished;
using testing::history;
using testing::Json;
using testing::processes_with;
using testing::Program;
using testing::read_file;
using testing::run_program;
using testing::Words;

class TrainElastic : public testing::TrainRuns {
 protected:
  // Trains, and kills a rank each time another of these texts is there. A rank's process is found
  // by its place among the children: those that were started again come last.
  struct Kill {
    std::string text;
    int times = 1;  // that it was said
    std::size_t child = 0;
  };
  Finished lose(const std::string& run,
                const std::string& settings,
                const std::vector<Kill>& kills) {
    const std::string mark = testing::unique_mark();
    Program program(command(run, settings), {mark});
    for (const Kill& each : kills) {
      EXPECT_TRUE(program.wait_for_output(each.text, each.times)) << each.text << program.output();
      const std::vector<pid_t> ranks = program.children();
      EXPECT_LT(each.child, ranks.size());
      kill(ranks[std::min(each.child, ranks.size() - 1)], SIGKILL);
    }
    Finished finished = program.wait();
    EXPECT_TRUE(testing::comes_true([&] { return processes_with(mark).empty(); }));
    return finished;
  }

  std::size_t event_files(const std::string& run) const {
    std::size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(path(run))) {
      count += entry.path().filename().string().starts_with("events.out.") ? 1 : 0;
    }
    return count;
  }

  void expect_same_result(const std::string& a, const std::string& b) const {
    const std::string weights = read_file(path(a) + "/model.safetensors");
    EXPECT_FALSE(weights.empty());
    EXPECT_TRUE(weights == read_file(path(b) + "/model.safetensors")) << a << " and " << b;
    EXPECT_EQ(history(path(b)), history(path(a)));
  }
};

const std::string kSteps = "--steps 60 --log-every 1 --threads 1 ";

TEST_F(TrainElastic, GoesOnWithTheRanksThatAreLeft) {
  train_well("calm", gpt() + kSteps);
  for (const std::string stage : {"--zero 0 ", "--zero 1 ", "--zero 3 "}) {
    const std::string run = "lossy" + stage.substr(7, 1);
    const Finished done = lose(run,
                               gpt() + kSteps + stage + "-n 3 --elastic 1:3",
                               {{"step 12/", 1, 1}, {"step 31/", 1, 0}});
    EXPECT_EQ(done.code, 0) << done.out << done.err;
    expect_parts(done.err,
                 {"rank 1 of 3",
                  "was killed by signal 9",
                  "going on with 2 ranks",
                  "rank 0 of 2",
                  "going on with 1 rank"});
    expect_same_result("calm", run);
    const Json changes = summary(run).at("rank_changes");
    EXPECT_EQ(changes.at("times"), 2);
    EXPECT_EQ(changes.at("lost"), 2);
    EXPECT_EQ(changes.at("joined"), 0);
    EXPECT_LE(changes.at("steps_again"), 2) << "the step at hand, at each loss";
    expect_parts(done.out, {"ranks changed", "2 times: 2 lost, 0 left, 0 joined; "});
    expect_parts(read_file(path(run) + "/train.log"), {"2 times: 2 lost, 0 left, 0 joined; "});
    EXPECT_EQ(event_files(run), 1U);
    // What the first world has said of the data and the model is not said again.
    expect_parts(done.out, {" parameters, 3 ranks", "now 2 ranks", "now 1 rank"});
    EXPECT_EQ(done.out.find(" parameters, "), done.out.rfind(" parameters, ")) << done.out;
    EXPECT_EQ(done.out.find(" to evaluate"), done.out.rfind(" to evaluate")) << done.out;
  }
}

// It goes on after its last step, with what nobody else could: there is no checkpoint to resume.
TEST_F(TrainElastic, AdvisesNoResumeWithoutACheckpoint) {
  const std::string model = "--model mlp --hidden 16 " + images(60, 8000) +
                            "--steps 6 --eval-batch 1 --log-every 1 --threads 1 ";
  const Finished done = lose("lossy", model + "-n 2 --elastic 1:2", {{"step 6/", 1, 1}});
  EXPECT_EQ(done.code, 0) << done.out << done.err;
  expect_parts(done.out, {"all 6 steps are done: nothing is left to train"});
  EXPECT_EQ(done.out.find("--resume"), std::string::npos) << done.out;
}

TEST_F(TrainElastic, StartsRanksAgain) {
  train_well("calm", mlp() + kSteps);
  const Finished done = lose("lossy",
                             mlp() + kSteps + "-n 2 --zero 2 --restart 2",
                             {{"step 7/", 1, 1}, {"step 22/", 1, 0}});
  EXPECT_EQ(done.code, 0) << done.out << done.err;
  expect_parts(done.err,
               {"rank 1 of 2",
                "starting it again (1 restart left)",
                "rank 0 of 2",
                "starting it again (0 restarts left)"});
  expect_same_result("calm", "lossy");
  EXPECT_EQ(summary("lossy").at("rank_changes").at("lost"), 2);
  EXPECT_EQ(summary("lossy").at("rank_changes").at("joined"), 2);
  EXPECT_FALSE(summary("calm").contains("rank_changes"));
}

// What ranks had in memory outlives all of them.
TEST_F(TrainElastic, OutlivesTheLossOfAllRanks) {
  train_well("calm", mlp() + kSteps);
  const std::string mark = testing::unique_mark();
  Program program(command("lossy", mlp() + kSteps + "-n 2 --zero 1 --restart 2"), {mark});
  ASSERT_TRUE(program.wait_for_output("step 20/"));
  for (const pid_t rank : program.children()) {
    kill(rank, SIGKILL);
  }
  const Finished done = program.wait();
  EXPECT_EQ(done.code, 0) << done.out << done.err;
  expect_parts(done.out, {"resuming after step", "with the state in memory"});
  expect_same_result("calm", "lossy");
  Json changes = summary("lossy").at("rank_changes");
  EXPECT_LE(changes.at("steps_again"), 1);  // none where they had just kept it
  changes.erase("steps_again");
  EXPECT_EQ(changes, Json({{"times", 1}, {"lost", 2}, {"left", 0}, {"joined", 2}}));
}

// Its own end, in good order, is what a rank asks the others for, and no loss.
TEST_F(TrainElastic, EndsInGoodOrderWhenARankIsAskedTo) {
  for (const std::string flags : {"--elastic 1:3 --restart 5", "--elastic 1:3", ""}) {
    const std::string run = "run" + std::to_string(flags.size());
    Program program(command(run, mlp() + "--steps 1000000 --log-every 1 -n 3 " + flags));
    ASSERT_TRUE(program.wait_for_output("step 10/"));
    kill(program.children()[2], SIGTERM);
    const Finished finished = program.wait(std::chrono::seconds(60));
    EXPECT_EQ(finished.code, 3) << flags << finished.out << finished.err;
    EXPECT_EQ(summary(run).at("status"), "interrupted") << flags;
    expect_parts(finished.err, {"rank 2 of 3 was asked to end by signal 15 (Terminated)"});
    EXPECT_EQ(finished.err.find("starting it again"), std::string::npos) << finished.err;
    EXPECT_EQ(finished.err.find("exit code"), std::string::npos) << finished.err;
  }
}

// The checkpoint that a run was resumed from may be gone by the time of a loss.
TEST_F(TrainElastic, GoesOnWhereTheCheckpointOfItsBeginningIsGone) {
  const std::string settings = mlp() + kSteps + "--save-every 5 --keep-last 1 --eval-every 1000 ";
  train_well("lossy", settings + "--steps 10");
  const std::string mark = testing::unique_mark();
  Program program({testing::trireme_binary(),
                   "train",
                   "--resume",
                   path("lossy"),
                   "--steps",
                   "60",
                   "--allow-changes",
                   "--elastic",
                   "1:2"},
                  {mark});
  ASSERT_TRUE(program.wait_for_output("step 40/"));
  kill(program.children()[0], SIGKILL);
  const Finished done = program.wait();
  EXPECT_EQ(done.code, 0) << done.out << done.err;
  expect_parts(done.out, {"resuming after step 10", "with the state in memory"});
}

// It can neither go on nor notice anything: without it the others would wait for ever.
TEST_F(TrainElastic, GoesOnWithoutARankThatIsStopped) {
  train_well("calm", mlp() + kSteps);
  const std::string mark = testing::unique_mark();
  Program program(command("lossy", mlp() + kSteps + "-n 3 --elastic 1:3 --heartbeat 0.5"), {mark});
  ASSERT_TRUE(program.wait_for_output("step 20/"));
  kill(program.children()[1], SIGSTOP);
  const Finished done = program.wait();
  EXPECT_EQ(done.code, 0) << done.out << done.err;
  expect_parts(done.err, {"rank 1 of 3", "has been stopped for 0.5 s", "going on with 2 ranks"});
  expect_same_result("calm", "lossy");
}

TEST_F(TrainElastic, TakesRanksInAndLetsThemGo) {
  const std::string steps = "--steps 2000 --log-every 1 --threads 1 ";
  train_well("calm", mlp() + steps);
  Program program(command("lossy", mlp() + steps + "-n 1 --zero 2 --elastic 1:3"));
  ASSERT_TRUE(program.wait_for_output("step 20/"));
  const std::string job = std::to_string(program.pid());
  const auto scale = [&](const std::string& ranks) {
    return run_program({testing::trireme_binary(), "scale", job, ranks});
  };
  EXPECT_EQ(scale("3").code, 0);
  ASSERT_TRUE(program.wait_for_output("3 ranks, ZeRO-2"));
  EXPECT_EQ(program.children().size(), 3U);
  expect_parts(scale("4").err, {"1 to 3 ranks", "4"});
  const Finished nobody = run_program({testing::trireme_binary(), "scale", "1", "2"});
  EXPECT_EQ(nobody.code, 2);
  expect_parts(nobody.err, {"process number of a launcher", "found 1;", "running are:", job});
  ASSERT_TRUE(program.wait_for_output("saved by 1 rank"));
  const Finished fewer = scale("2");
  EXPECT_EQ(fewer.code, 0) << fewer.err;
  ASSERT_TRUE(program.wait_for_output("saved by 3 ranks"));
  const Finished done = program.wait();
  EXPECT_EQ(done.code, 0) << done.out << done.err;
  expect_parts(done.err, {"going from 3 to 2 ranks after the step at hand, as trireme scale asks"});
  EXPECT_EQ(summary("lossy").at("ranks"), 2);
  EXPECT_EQ(summary("lossy").at("rank_changes"),
            Json({{"times", 2}, {"lost", 0}, {"left", 1}, {"joined", 2}, {"steps_again", 0}}));
  expect_same_result("calm", "lossy");
  const Finished gone = scale("2");
  EXPECT_EQ(gone.code, 2);
  expect_parts(gone.err, {"process number of a launcher", job});
}

TEST_F(TrainElastic, EndsBelowTheLeastNumberOfRanks) {
  const Finished done = lose(
      "run", mlp() + "--steps 1000000 -n 3 --elastic 2:3", {{"step 10/", 1, 2}, {"2 ranks", 1, 0}});
  EXPECT_EQ(done.code, 3) << done.out << done.err;
  expect_parts(done.err, {"rank 2 of 3", "going on with 2 ranks", "rank 0 of 2 (pid", "signal 9"});
  EXPECT_EQ(done.err.find("going on with 1 rank"), std::string::npos) << done.err;
}

TEST_F(TrainElastic, EndsInGoodOrderWhenItIsAskedTo) {
  const std::string mark = testing::unique_mark();
  signal(SIGINT, SIG_DFL);  // a shell may have had it ignored
  Program program(command("run", mlp() + "--steps 1000000 -n 2 --elastic 1:2"), {mark});
  ASSERT_TRUE(program.wait_for_output("step 10/"));
  kill(program.children()[0], SIGKILL);
  ASSERT_TRUE(program.wait_for_output("resuming after"));
  kill(program.pid(), SIGINT);
  const Finished finished = program.wait();
  EXPECT_EQ(finished.code, 128 + SIGINT) << finished.out << finished.err;
  EXPECT_EQ(summary("run").at("status"), "interrupted");
  EXPECT_TRUE(processes_with(mark).empty());
}

// A rank may be a script that trains: what it trains is no part of the job.
TEST_F(TrainElastic, LeavesTheTrainingsOfARankAlone) {
  const std::string steps = "--steps 30 --threads 1 -n 2 ";
  train_well("first", mlp() + steps);
  train_well("second", mlp() + steps + "--seed 7");
  std::string script = "set -e\n";
  for (const auto& [run, seed] :
       {std::pair("inner-first", ""), std::pair("inner-second", "--seed 7")}) {
    for (const std::string& word : command(run, mlp() + steps + seed)) {
      script += "'" + word + "' ";
    }
    script += "\n";
  }
  const Finished done = run_program(
      {testing::trireme_binary(), "run", "-n", "1", "--restart", "1", "--", "sh", "-c", script});
  EXPECT_EQ(done.code, 0) << done.out << done.err;
  expect_same_result("first", "inner-first");
  expect_same_result("second", "inner-second");
}

// Ranks that keep nothing could not go on after the step at hand.
TEST_F(TrainElastic, DoesNotScaleWhatKeepsNothing) {
  Program program({testing::trireme_binary(),
                   "run",
                   "--elastic",
                   "1:2",
                   "--",
                   "sh",
                   "-c",
                   "echo here; exec sleep 60"});
  ASSERT_TRUE(program.wait_for_output("here", 2));
  const Finished refused =
      run_program({testing::trireme_binary(), "scale", std::to_string(program.pid()), "1"});
  EXPECT_EQ(refused.code, 2);
  expect_parts(refused.err, {"ElasticState", "found nothing kept"});
  kill(program.pid(), SIGTERM);
  EXPECT_EQ(program.wait().code, 128 + SIGTERM);
}

// Also where the ranks that are left are just meeting anew.
TEST_F(TrainElastic, EndsInGoodOrderInTheMiddleOfALoss) {
  signal(SIGINT, SIG_DFL);
  for (const int milliseconds : {0, 50, 150, 300}) {
    const std::string run = "run" + std::to_string(milliseconds);
    Program program(command(run, mlp() + "--steps 1000000 --save-every 100000 -n 3 --elastic 1:3"));
    ASSERT_TRUE(program.wait_for_output("step 10/"));
    kill(program.children()[0], SIGKILL);
    run_program({"sleep", std::to_string(milliseconds / 1000.0)});
    kill(program.pid(), SIGINT);
    const Finished finished = program.wait();
    EXPECT_EQ(finished.code, 128 + SIGINT) << milliseconds << finished.out << finished.err;
    EXPECT_EQ(summary(run).at("status"), "interrupted") << milliseconds << finished.err;
    EXPECT_EQ(read_file(path(run) + "/checkpoints/latest").empty(), false) << milliseconds;
  }
}

// Programs that know nothing of this have ended, all but one: it would be alone.
TEST_F(TrainElastic, DoesNotGoOnBelowTheLeastNumberOfRanks) {
  Program program({testing::trireme_binary(),
                   "run",
                   "--elastic",
                   "2:3",
                   "--restart",
                   "2",
                   "--",
                   "sh",
                   "-c",
                   "echo here; sleep 1"});
  ASSERT_TRUE(program.wait_for_output("here", 3));
  kill(program.children()[0], SIGKILL);
  const Finished finished = program.wait();
  EXPECT_EQ(finished.code, 3) << finished.out << finished.err;
  expect_parts(finished.err, {"1 rank left", "2"});
}

// As any other training: what nobody reads is no reason to lose it, and it is said where somebody
// may still read.
TEST_F(TrainElastic, GoesOnWhereNobodyReadsItsOutput) {
  std::string script;
  for (const std::string& word : command("run", mlp() + kSteps + "-n 2 --elastic 1:2")) {
    script += "'" + word + "' ";
  }
  const Finished done = run_program({"bash", "-c", "set -o pipefail; " + script + "| head -n 3"});
  EXPECT_EQ(done.code, 0) << done.out << done.err;
  expect_parts(done.err,
               {"standard output can no longer be written", "the job continues", "run/logs"});
  EXPECT_EQ(summary("run").at("status"), "finished");
}

TEST_F(TrainElastic, RefusesWhatCannotBe) {
  const auto refused = [&](const std::string& settings, const Words& parts) {
    const Finished finished = train("refused", mlp() + settings);
    EXPECT_EQ(finished.code, 2) << settings << finished.out << finished.err;
    expect_parts(finished.err, parts);
  };
  refused("--elastic 3:2", {"--elastic", "MIN:MAX", "3:2"});
  refused("--elastic two", {"--elastic", "MIN:MAX", "two"});
  refused("-n 4 --elastic 1:2", {"-n", "1 to 2", "4"});
  refused("--elastic 1:2 --sum-order local_first", {"--elastic", "local_first", "--allow-changes"});
  refused("--elastic 1:2 --backend ucx", {"--elastic", "ucx"});
  refused("--restart -1", {"--restart", "-1"});
  refused("--elastic 1:2 --sum-group 2", {"--elastic", "--sum-group"});
  refused("--heartbeat 5", {"--heartbeat", "--elastic"});
  refused("--redundancy 2", {"--redundancy", "--elastic"});
  refused("--elastic 1:2 --redundancy often", {"--redundancy", "0 or more", "often"});
  refused("--elastic 1:2 --redundancy -1", {"--redundancy", "0 or more", "-1"});
}

// What depends on the number of ranks is for the ranks to refuse: they are told.
TEST_F(TrainElastic, ProgramsAreToldThatTheNumberOfRanksMayChange) {
  const auto told = [](const std::string& flags) {
    Words all = testing::words("run " + flags + " --");
    all.insert(all.begin(), testing::trireme_binary());
    all.insert(all.end(), {"sh", "-c", "echo told: $TRIREME_RANKS_MAY_CHANGE."});
    return run_program(all);
  };
  expect_parts(told("--elastic 1:1").out, {"told: ."});
  expect_parts(told("-n 1 --elastic 1:2").out, {"told: on."});
  expect_parts(told("-n 1 --restart 2").out, {"told: ."});
  expect_parts(told("--allow-changes -n 1 --elastic 1:2").out, {"told: ."});
  const Finished alone = told("-n 1 --allow-changes");
  EXPECT_EQ(alone.code, 2);
  expect_parts(alone.err, {"--allow-changes: expected --elastic MIN:MAX, found none"});
}

}  // namespace
}  // namespace trireme::train_elastic_test
