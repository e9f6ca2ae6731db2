// trireme train --drill over three machines: faults of ranks and of what goes between them happen
// as planned, are recorded by machine 0, and change no bit of the result.

#include <map>

#include "support/machines.h"
#include "tools/train_runs.h"

namespace trireme::drill_machines_test {
namespace {

using testing::comes_true;
using testing::expect_parts;
using testing::Finished;
using testing::Json;
using testing::Machines;
using testing::Program;
using testing::read_file;
using testing::read_json;
using testing::Words;

constexpr std::chrono::seconds kPatience{120};

class DrillMachines : public testing::TrainRuns {
 protected:
  void SetUp() override {
    if (const auto reason = Machines::unavailable("cut")) {
      GTEST_SKIP() << *reason;
    }
    machines_ = std::make_unique<Machines>(3);
  }
  void TearDown() override {
    if (machines_) {
      EXPECT_TRUE(comes_true([&] { return testing::processes_with(mark_).empty(); }));
    }
  }

  std::string settings(int steps) const {
    return gpt() + "--threads 1 --log-every 50 --steps " + std::to_string(steps) + " ";
  }
  std::unique_ptr<Program> start(int machine,
                                 const std::string& run,
                                 const std::string& flags,
                                 const std::string& plan,
                                 const std::string& shell = "exec \"$@\" 2>&1") {
    Words all =
        command(run,
                flags + " --timeout 60 -n 2 --nnodes 3 --node-rank " + std::to_string(machine) +
                    " --rendezvous " + machines_->address(0) + ":29700 --interfaces eth0");
    all.insert(all.begin(), {"sh", "-c", shell, "sh"});  // all in one stream
    if (!plan.empty()) {
      all.insert(all.end(), {"--drill", plan, "--drill-seed", seed_});
    }
    return machines_->run(machine, all, {"TRIREME_TOKEN=of this test", mark_});
  }
  // Each machine has the same command, or machine 0 alone knows of the drill.
  void drill(const std::string& run,
             const std::string& flags,
             const std::string& plan,
             bool all_know = true,
             const std::string& shell = "exec \"$@\" 2>&1") {
    std::vector<std::unique_ptr<Program>> programs;
    for (int machine = 0; machine < 3; ++machine) {
      programs.push_back(start(machine, run, flags, machine == 0 || all_know ? plan : "", shell));
    }
    for (const auto& program : programs) {
      const Finished finished = program->wait(kPatience);
      EXPECT_EQ(finished.code, 0) << finished.out;
    }
    EXPECT_TRUE(read_file(path(run) + "/model.safetensors") ==
                read_file(path("calm") + "/model.safetensors"));
    EXPECT_EQ(read_json(path(run) + "/drill.json").at("exit_code"), 0);
  }
  Json faults(const std::string& run) const {
    return read_json(path(run) + "/drill.json").at("faults");
  }

  // Those below have faults in their first half: the job does not end before all are back.
  std::string seed_ = "3";
  std::unique_ptr<Machines> machines_;
  const std::string mark_ = testing::unique_mark();
};

// Who was hit, and by what; in which step a message goes that is sent beside the steps is for the
// clock to decide.
Words planned(const Json& faults) {
  Words all;
  for (const Json& fault : faults) {
    const bool in_step = fault.at("kind") != "corrupt";
    all.push_back(Json{fault.at("kind"),
                       in_step ? fault.at("step") : Json(),
                       fault.at("when"),
                       fault.at("rank"),
                       fault.at("ranks")}
                      .dump());
  }
  return all;
}

TEST_F(DrillMachines, LinksBreakAndLieAsPlannedAndNoBitChanges) {
  train_well("calm", settings(100) + "-n 1");
  const std::string flags = settings(100) + "--zero 2 --elastic 1:6 --heartbeat 10 --checksums";
  const std::string plan = "delay:60ms,p=0.03;drop:4%;corrupt:3e-5";
  std::map<std::string, int> kinds;
  for (const std::string run : {"first", "second"}) {
    drill(run, flags, plan);
    for (const Json& fault : faults(run)) {
      const std::string kind = fault.at("kind");
      ++kinds[kind];
      EXPECT_EQ(fault.at("outcome"), "recovered") << fault;
      const int peer = fault.at("peer");
      EXPECT_NE(peer / 2, fault.at("rank").get<int>() / 2) << fault;  // on another machine
      EXPECT_EQ(fault.at("rank").get<int>() / 2, fault.at("machine")) << fault;
      EXPECT_EQ(fault.at("noticed").empty(), kind == "delay") << fault;
      EXPECT_GE(fault.at("next_step_seconds").get<double>(), kind == "delay" ? 0.06 : 0) << fault;
      if (kind == "delay") {
        EXPECT_EQ(fault.at("steps_again"), 0) << fault;
      } else {
        EXPECT_LE(fault.at("steps_again").get<int>(), 2) << fault;
      }
    }
  }
  EXPECT_EQ(planned(faults("first")), planned(faults("second")));
  EXPECT_GT(kinds["delay"], 1);
  EXPECT_GT(kinds["drop"], 1);
  EXPECT_GT(kinds["corrupt"], 1);
}

TEST_F(DrillMachines, RanksOfAllMachinesAreLostAndLeaveAndCome) {
  train_well("calm", settings(120) + "-n 1");
  drill("run",
        settings(120) + "--zero 3 --elastic 1:6 --restart 100 --heartbeat 10",
        "kill:p=0.03;stop:100ms,p=0.02;leave:p=0.02;join:p=0.03",
        /*all_know=*/false);
  std::map<std::string, int> recovered;
  std::set<int> machines;
  for (const Json& fault : faults("run")) {
    const std::string kind = fault.at("kind");
    const bool possible = fault.at("outcome") == "recovered";
    recovered[kind] += possible ? 1 : 0;
    if (kind == "kill") {
      machines.insert(fault.at("machine").get<int>());
      EXPECT_TRUE(possible) << fault;
      EXPECT_EQ(fault.at("steps_again"), 1) << fault;
      EXPECT_EQ(fault.at("noticed").at(0).at("how").get<std::string>().substr(0, 5), "rank ");
    } else {
      EXPECT_EQ(fault.at("steps_again"), 0) << fault;
    }
  }
  EXPECT_GT(recovered["kill"], 2);
  EXPECT_GT(recovered["stop"], 0);
  EXPECT_GT(recovered["leave"], 0);
  EXPECT_GT(recovered["join"], 0);
  EXPECT_GT(machines.size(), 1U);
}

// As systemd starts them again.
const char* const kStartAgain =
    "while :; do \"$@\" 2>&1; code=$?; [ $code = 137 ] || exit $code; done";

TEST_F(DrillMachines, LaunchersAreKilledAndStoppedAndNoBitChanges) {
  seed_ = "16570";
  train_well("calm", settings(300) + "-n 1");
  std::map<std::string, int> recovered;
  std::map<std::string, Words> same;
  for (const std::string run : {"first", "second"}) {
    drill(run,
          settings(300) + "--zero 2 --elastic 1:6 --heartbeat 10 --save-every 5",
          "kill-launcher:p=0.02;stop-launcher:300ms,p=0.02",
          /*all_know=*/true,
          kStartAgain);
    for (const Json& fault : faults(run)) {
      const std::string kind = fault.at("kind");
      EXPECT_TRUE(fault.at("rank").is_null()) << fault;
      EXPECT_GT(fault.at("machine"), 0) << fault;  // which decides
      same[run].push_back(
          Json{kind, fault.at("step"), fault.at("when"), fault.at("machine")}.dump());
      const std::string outcome = fault.at("outcome");
      if (outcome != "recovered") {
        EXPECT_TRUE(outcome.starts_with("not possible: machine ")) << fault;
        continue;
      }
      ++recovered[kind];
      if (kind == "kill-launcher") {
        const Json& first = fault.at("noticed").at(0);
        EXPECT_TRUE(first.at("who") == "launcher of machine 0" ||
                    first.at("who").get<std::string>().starts_with("rank "))
            << fault;
        EXPECT_GE(fault.at("steps_again"), 1) << fault;
        EXPECT_LE(fault.at("steps_again"), 2) << fault;  // with a copy on another machine
      } else {
        EXPECT_TRUE(fault.at("noticed").empty()) << fault;
        EXPECT_GE(fault.at("next_step_seconds"), 0.3) << fault;
        EXPECT_EQ(fault.at("steps_again"), 0) << fault;
      }
    }
  }
  EXPECT_EQ(same["first"], same["second"]);
  EXPECT_GT(recovered["kill-launcher"], 1);
  EXPECT_GT(recovered["stop-launcher"], 1);
  const Finished shown = testing::run_program({testing::trireme_binary(), "drill", path("first")});
  expect_parts(shown.out, {"kill-launcher, ", "stop-launcher, ", "machine 1", "|#"});
}

// Its ranks are lost, and it comes back by itself; nothing starts a launcher again.
TEST_F(DrillMachines, ALauncherThatIsStoppedForLongIsLost) {
  seed_ = "49959";
  train_well("calm", settings(600) + "-n 1");
  drill(
      "run", settings(600) + "--zero 2 --elastic 3:6 --heartbeat 1", "stop-launcher:2500ms,p=0.02");
  int lost = 0;
  for (const Json& fault : faults("run")) {
    if (fault.at("outcome") == "recovered" && !fault.at("noticed").empty()) {
      ++lost;
      EXPECT_GE(fault.at("next_step_seconds"), 1) << fault;
    }
  }
  EXPECT_GT(lost, 0);
}

// With too few ranks left the job might end: that is recorded, and nobody is hit.
TEST_F(DrillMachines, LaunchersThatCannotBeSparedAreNotHit) {
  train_well("calm", settings(60) + "-n 1");
  drill("run", settings(60) + "--zero 1 --elastic 5:6", "kill-launcher:p=0.2");
  ASSERT_FALSE(faults("run").empty());
  for (const Json& fault : faults("run")) {
    EXPECT_EQ(fault.at("outcome"), "not possible: 4 ranks would be left, where --elastic wants 5");
    EXPECT_TRUE(fault.at("next_step_seconds").is_null());
  }
}

TEST_F(DrillMachines, ADrillThatIsNotMachineZerosIsRefused) {
  const auto host = start(0, "run", settings(5) + "--elastic 1:6", "kill");
  const auto other = start(1, "run", settings(5) + "--elastic 1:6", "kill:p=0.5");
  const auto third = start(2, "run", settings(5) + "--elastic 1:6", "");
  const Finished refused = other->wait(kPatience);
  EXPECT_EQ(refused.code, 2);
  expect_parts(refused.out, {"--drill: expected what machine 0 was started with (seed 3 kill)"});
  host->wait(kPatience);
  third->wait(kPatience);
}

}  // namespace
}  // namespace trireme::drill_machines_test
