// trireme train --drill: faults happen as planned, change no bit of the result, and are recorded
// with what became of them.

#include <csignal>
#include <map>

#include "tools/train_runs.h"

namespace trireme::drill_test {
namespace {

using testing::expect_parts;
using testing::Finished;
using testing::Json;
using testing::Program;
using testing::read_file;
using testing::read_json;
using testing::run_program;
using testing::trireme_binary;
using testing::Words;

class Drills : public testing::TrainRuns {
 protected:
  static std::string steps(int count) {
    return "--steps " + std::to_string(count) + " --log-every 1 --threads 1 ";
  }
  Finished drill(const std::string& run, const std::string& settings, const std::string& plan) {
    Words words = command(run, settings);
    words.insert(words.end(), {"--drill", plan});
    return run_program(words);
  }
  Json faults(const std::string& run) const {
    return read_json(path(run) + "/drill.json").at("faults");
  }
  // What was planned, and for whom; but for where a world took over, which may be one step sooner.
  Words planned(const std::string& run) const {
    Words all;
    for (const Json& fault : faults(run)) {
      if (fault.at("when") == "as a new world takes over the state") {
        continue;
      }
      all.push_back(Json{
          fault.at("kind"), fault.at("step"), fault.at("when"), fault.at("rank"), fault.at("ranks")}
                        .dump());
    }
    return all;
  }
  void expect_same_weights(const std::string& a, const std::string& b) const {
    const std::string weights = read_file(path(a) + "/model.safetensors");
    EXPECT_FALSE(weights.empty());
    EXPECT_TRUE(weights == read_file(path(b) + "/model.safetensors")) << a << " and " << b;
  }
};

TEST_F(Drills, RanksAreLostAsPlannedAndNoBitChanges) {
  train_well("calm", gpt() + steps(80));
  const std::string settings =
      gpt() + steps(80) + "-n 3 --zero 2 --elastic 1:3 --restart 100 --heartbeat 30 ";
  const std::string plan = "kill:p=0.06;stop:100ms,p=0.05;leave:p=0.05;join:p=0.05";
  std::map<std::string, int> outcomes;
  for (const std::string run : {"first", "second"}) {
    const Finished done = drill(run, settings + "--drill-seed 4", plan);
    EXPECT_EQ(done.code, 0) << done.out << done.err;
    expect_same_weights("calm", run);
    EXPECT_EQ(read_json(path(run) + "/drill.json").at("exit_code"), 0);
    expect_parts(done.err, {"after the step at hand, as the drill asks"});
    EXPECT_EQ(done.err.find("as trireme scale asks"), std::string::npos) << done.err;
    for (const Json& fault : faults(run)) {
      const std::string outcome = fault.at("outcome");
      ++outcomes[outcome.substr(0, outcome.find(':'))];
      const bool possible = outcome == "recovered";
      EXPECT_EQ(fault.at("next_step_seconds").is_number(), possible) << fault;
      EXPECT_EQ(fault.at("noticed").empty(), !possible || fault.at("kind") == "stop") << fault;
      // Once it was kept, it need not be computed again.
      const bool early = std::string(fault.at("when")).starts_with("before ") &&
                         fault.at("when") != "before all know that the state is kept";
      const int again = fault.at("steps_again");
      EXPECT_LE(again, fault.at("kind") == "kill" ? 1 : 0) << fault;
      EXPECT_TRUE(again == 1 || fault.at("kind") != "kill" || !early) << fault;
    }
  }
  EXPECT_EQ(planned("first"), planned("second"));
  EXPECT_GT(outcomes["recovered"], 8);
  EXPECT_GT(outcomes["not possible"], 0);  // with 3 ranks, as many as there may be
  EXPECT_EQ(outcomes.size(), 2U);
  const Finished other = drill("other", settings + "--drill-seed 5", plan);
  EXPECT_EQ(other.code, 0) << other.err;
  EXPECT_NE(planned("first"), planned("other"));
}

TEST_F(Drills, KillAtEveryPointOfKeepingSavingAndTakingOver) {
  const std::string settings = mlp() + steps(60) + "--save-every 3 ";
  train_well("calm", settings);
  const Finished done = drill("run", settings + "-n 2 --zero 3 --restart 1000", "kill:p=0.3");
  EXPECT_EQ(done.code, 0) << done.err;
  expect_same_weights("calm", "run");
  std::map<std::string, int> where;
  for (const Json& fault : faults("run")) {
    EXPECT_EQ(fault.at("kind"), "kill");
    if (fault.at("step") < 60) {  // else there is no step after it
      EXPECT_EQ(fault.at("outcome"), "recovered") << fault;
    }
    EXPECT_LE(fault.at("steps_again"), 1) << fault;
    ++where[fault.at("when")];
  }
  for (const std::string point : {"before backward",
                                  "before the update",
                                  "before the state is kept",
                                  "before all know that the state is kept",
                                  "after the state is kept",
                                  "in a save",
                                  "as a new world takes over the state"}) {
    EXPECT_GT(where[point], 0) << point;
  }
  EXPECT_EQ(where.size(), 7U);
}

TEST_F(Drills, ALongStopIsALoss) {
  train_well("calm", mlp() + steps(30));
  const Finished done =
      drill("lossy", mlp() + steps(30) + "-n 2 --restart 50 --heartbeat 0.2", "stop:600s,p=0.1");
  EXPECT_EQ(done.code, 0) << done.err;
  expect_same_weights("calm", "lossy");
  ASSERT_FALSE(faults("lossy").empty());
  for (const Json& fault : faults("lossy")) {
    const bool kept = std::string(fault.at("when")).ends_with("the state is kept") &&
                      fault.at("when") != "before the state is kept";
    EXPECT_TRUE(fault.at("outcome") == "recovered" || fault.at("step") == 30) << fault;
    EXPECT_TRUE(fault.at("steps_again") == 1 || kept) << fault;
    EXPECT_EQ(fault.at("noticed").at(0).at("who"), "launcher");
  }
}

TEST_F(Drills, AFullDiskIsOutlivedByRestarts) {
  const std::string settings = mlp() + steps(30) + "--save-every 10 ";
  train_well("calm", settings);
  const Finished done = drill("full", settings + "-n 2 --restart 50", "disk-full:p=1");
  EXPECT_EQ(done.code, 0) << done.err;
  expect_parts(done.err, {"drill: disk-full of rank", "in step 10", "No space left on device"});
  expect_same_weights("calm", "full");
  ASSERT_FALSE(faults("full").empty());
  EXPECT_EQ(faults("full").at(0).at("step"), 10);
  EXPECT_EQ(faults("full").at(0).at("outcome"), "recovered");
}

TEST_F(Drills, TheRecordIsWholeWhenTheLauncherIsKilled) {
  Words words = command("killed", mlp() + steps(100'000) + "-n 2 --restart 1000");
  words.insert(words.end(), {"--drill", "kill:p=0.05"});
  Program program(words);
  ASSERT_TRUE(program.wait_for_output("step 60/"));
  kill(program.pid(), SIGKILL);
  program.wait();
  const Json all = read_json(path("killed") + "/drill.json");
  ASSERT_TRUE(all.is_object());
  EXPECT_TRUE(all.at("exit_code").is_null());
  EXPECT_FALSE(all.at("faults").empty());
}

TEST_F(Drills, AreShown) {
  EXPECT_EQ(drill("lossy", mlp() + steps(40) + "-n 2 --restart 50", "kill:p=0.1").code, 0);
  const std::string count = std::to_string(faults("lossy").size());
  const Finished shown = run_program({trireme_binary(), "drill", path("lossy")});
  EXPECT_EQ(shown.code, 0) << shown.err;
  expect_parts(shown.out,
               {"drill \"kill:p=0.1\", seed 1: " + count + " fault",
                count + " recovered from; the job ended with 0",
                "s to the next step",
                "noticed by ",
                "launcher after ",
                "|#",
                "all "});
  const Finished json = run_program({trireme_binary(), "drill", "--json", path("lossy")});
  EXPECT_EQ(json.out, read_file(path("lossy") + "/drill.json"));
  const std::string svg = path("drill.svg");
  EXPECT_EQ(run_program({trireme_binary(), "drill", path("lossy"), "-o", svg}).code, 0);
  EXPECT_EQ(read_file(svg).substr(0, 4), "<svg");
  const Finished none = run_program({trireme_binary(), "drill", path("nothing")});
  EXPECT_EQ(none.code, 2);
  expect_parts(none.err, {"expected the folder of a run with a drill.json", "No such file"});
  Json some = read_json(path("lossy") + "/drill.json");
  some["faults"].push_back(some.at("faults").at(0));
  some["faults"].back()["outcome"] = "not possible: there are 2 ranks already";
  some["faults"].back()["next_step_seconds"] = nullptr;
  data_.write("some.json", some.dump());
  const Finished apart = run_program({trireme_binary(), "drill", path("some.json")});
  expect_parts(apart.out, {count + " recovered from, 1 not possible; the job ended with 0"});
  data_.write("broken.json", "{\"faults\": 3");
  const Finished broken = run_program({trireme_binary(), "drill", path("broken.json")});
  EXPECT_EQ(broken.code, 2);
  expect_parts(broken.err, {"broken.json", "expected what a drill has recorded"});
}

TEST_F(Drills, OfProgramsAreRecordedBesideTheirLogs) {
  const Finished done = run_program({trireme_binary(),
                                     "run",
                                     "-n",
                                     "2",
                                     "--restart",
                                     "20",
                                     "--log-dir",
                                     path("logs"),
                                     "--drill",
                                     "kill:p=0.3",
                                     "--",
                                     testing::test_binary("stalling_worker"),
                                     "calm",
                                     "-"});
  EXPECT_EQ(done.code, 0) << done.err;
  expect_parts(done.err, {"what happens is recorded in " + path("logs") + "/drill.json"});
  EXPECT_FALSE(faults("logs").empty());
}

TEST_F(Drills, WhatMakesNoSenseIsRefused) {
  const auto refused = [&](const std::string& settings, const std::string& plan) {
    const Finished done = drill("refused", mlp() + steps(5) + settings, plan);
    EXPECT_EQ(done.code, 2) << plan;
    return done.err;
  };
  expect_parts(refused("-n 2", "kill"), {"--elastic MIN:MAX or --restart N", "found neither"});
  expect_parts(refused("-n 2 --restart 2", "kill;join"), {"join", "MIN < MAX"});
  expect_parts(refused("--elastic 1:2 --save-every 2", "disk-full"), {"--restart N", "found none"});
  expect_parts(refused("-n 2 --restart 2", "disk-full"), {"--save-every N", "found none"});
  for (const std::string link : {"delay:50ms", "drop:1%", "corrupt:1e-6"}) {
    expect_parts(refused("-n 2 --restart 2", link), {"connections between machines", "--nnodes"});
  }
  expect_parts(refused("-n 2 --restart 2 --nnodes 2 --rendezvous 127.0.0.1:1", "corrupt:1e-6"),
               {"nothing would find a bit", "--checksums or --encrypt, found neither"});
  for (const std::string launchers : {"kill-launcher", "stop-launcher:1s"}) {
    expect_parts(refused("-n 2 --restart 2", launchers), {"fault of launchers", "--nnodes of 2"});
  }
  const std::string three = "-n 2 --restart 2 --nnodes 3 --rendezvous 127.0.0.1:1";
  expect_parts(refused(three, "kill-launcher"),
               {"takes the ranks", "MIN < MAX", "--restart alone"});
  expect_parts(refused(three, "stop-launcher:5s"), {"5 s are not less than --heartbeat 5"});
  expect_parts(refused("-n 2 --restart 2 --drill-seed x", "kill"), {"--drill-seed", "\"x\""});
  const Finished alone = train("refused", mlp() + steps(5) + "--drill-seed 3");
  EXPECT_EQ(alone.code, 2);
  expect_parts(alone.err, {"--drill-seed", "expected --drill FAULTS"});
}

}  // namespace
}  // namespace trireme::drill_test
