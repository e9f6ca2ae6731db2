// Elastic trainings over three machines that agree in an etcd who leads, a member of which is on
// each of them: the machine that leads is killed, or cut off. The weights at the end are
// those of one process in peace.

#include <algorithm>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <set>

#include "cluster/elastic_machines.h"
#include "support/etcd.h"

namespace trireme::store_machines_test {
namespace {

using testing::comes_true;
using testing::EtcdMembers;
using testing::Finished;

class StoreMachines : public testing::ElasticMachines {
 protected:
  void SetUp() override {
    if (const auto reason = EtcdMembers::unavailable()) {
      GTEST_SKIP() << *reason;
    }
    ElasticMachines::SetUp();
    if (!machines_) {
      return;
    }
    etcd_ = std::make_unique<EtcdMembers>(
        std::vector<std::string>{
            machines_->address(0), machines_->address(1), machines_->address(2)},
        29800,
        [this](int machine, const EtcdMembers::Words& command) {
          return machines_->run(machine, command);
        });
  }
  std::string meeting() const override { return "--store " + etcd_->store(); }

  // The machine that leads says where it can be asked to scale; -1 where none has said it.
  int leader(int but = -1) {
    int found = -1;
    comes_true([&] {
      for (int machine = 0; machine < 3; ++machine) {
        const bool leads =
            program(machine).output().find("changes its number of ranks") != std::string::npos;
        found = leads && machine != but ? machine : found;
      }
      return found >= 0;
    });
    EXPECT_GE(found, 0) << program(0).output();
    return found;
  }
  // Somebody says it: rank 0 may be on any machine.
  void one_says(const std::string& what, const std::vector<int>& machines) {
    EXPECT_TRUE(comes_true([&] {
      return std::any_of(machines.begin(), machines.end(), [&](int machine) {
        return program(machine).output().find(what) != std::string::npos;
      });
    })) << "no \""
        << what << "\" in: " << program(machines.front()).output()
        << "\nand: " << program(machines.back()).output();
  }
  int dispensable() const override { return 0; }
  void kill_machine(int machine) override {
    machines_->kill(machine);  // and its member of the store
    etcd_->start_again(machine);
  }
  // By how many hours the run's checkpoints were saved in the future.
  std::set<std::int64_t> hours_ahead() const {
    const std::string word = "\"saved_at\": ";
    std::set<std::int64_t> hours;
    for (const auto& step : std::filesystem::directory_iterator(path("run") + "/checkpoints")) {
      const std::string text = testing::read_file(step.path() / "manifest.json");
      if (const std::size_t at = text.find(word); at != std::string::npos) {
        const std::int64_t date = std::stoll(text.substr(at + word.size()));
        hours.insert(std::lround(static_cast<double>(date - std::time(nullptr)) / 3600));
      }
    }
    return hours;
  }
  static std::vector<int> others(int machine) {
    std::vector<int> all = {0, 1, 2};
    std::erase(all, machine);
    return all;
  }

  std::unique_ptr<EtcdMembers> etcd_;
};

TEST_F(StoreMachines, GoOnWithoutTheOneThatLeads) {
  calm();
  start_all("--elastic 1:6 --heartbeat 1");
  one_says("step 50/", {0, 1, 2});
  const int first = leader();
  ASSERT_GE(first, 0);
  machines_->cut(first);
  one_says("4 ranks, ZeRO-2", others(first));
  // Before the others went on, nothing ran there any more.
  ASSERT_TRUE(says(first, "could not renew its lead in the store"));
  EXPECT_TRUE(ranks(first).empty());
  machines_->mend(first);
  one_says(name(first) + " has come", others(first));
  const int second = leader(first);
  ASSERT_GE(second, 0);
  ASSERT_TRUE(comes_true([&] { return ranks(first).size() == 2; }));
  machines_->kill(second);  // and its member of the store
  for (const int machine : others(second)) {
    expect_end(machine);
  }
  expect_the_weights_of_peace("a leader cut off, the next one killed");
}

TEST_F(StoreMachines, GoOnWithAnotherWhenTheOneThatLeadsIsAskedToEnd) {
  log_every_ = 1;
  calm();
  start_all("--elastic 1:6 --heartbeat 1");
  one_says("step 50/", {0, 1, 2});
  const int first = leader();
  ASSERT_GE(first, 0);
  kill(program(first).pid(), SIGTERM);
  expect_end(first);
  EXPECT_TRUE(says(first, "this machine has left the job, which another is to lead"));
  one_says("4 ranks, ZeRO-2", others(first));
  EXPECT_NE(leader(first), first);
  for (const int machine : others(first)) {
    EXPECT_TRUE(says(machine, name(first) + " leaves the job, and another is to lead it"));
    expect_end(machine);
  }
  expect_the_weights_of_peace("a leader that was asked to end");
  // No step was computed again: rank 0 has said every one of them once.
  const std::string log = "\n" + testing::read_file(path("run") + "/train.log");
  for (std::int64_t step = 1; step <= steps_; ++step) {
    ASSERT_EQ(testing::count_of(log, "\nstep " + std::to_string(step) + "/"), 1) << step << "\n"
                                                                                 << log;
  }
  // The others' ranks were only started again.
  EXPECT_EQ(
      summary("run").at("rank_changes"),
      testing::Json({{"times", 1}, {"lost", 0}, {"left", 2}, {"joined", 0}, {"steps_again", 0}}));
}

// The step at hand does not end: a rank of the leader's machine is stopped, or one of another.
TEST_F(StoreMachines, GoOnWhereTheRanksOfTheOneThatLeavesDoNotComeToRest) {
  calm();
  for (const bool of_leader : {true, false}) {
    const std::string run = of_leader ? "of the leader" : "of another";
    std::filesystem::remove_all(path("run"));
    const std::size_t before = said("step 50/");
    start_all("--elastic 1:6 --heartbeat 8 --grace 1");
    expect_said("step 50/", before);
    const int first = leader();
    ASSERT_GE(first, 0);
    const int where = of_leader ? first : others(first).front();
    ASSERT_FALSE(ranks(where).empty());
    const pid_t stopped = ranks(where).front();
    kill(stopped, SIGSTOP);
    kill(program(first).pid(), SIGTERM);
    ASSERT_TRUE(says(first, "the ranks here have not left in time (--grace): ending them"));
    ASSERT_TRUE(says(first, "this machine has left the job, which another is to lead"));
    expect_end(first);
    for (const int machine : others(first)) {
      EXPECT_TRUE(says(machine, name(first) + " leaves the job, and another is to lead it"));
      expect_end(machine);
    }
    EXPECT_NE(kill(stopped, 0), 0);  // nobody has it go on
    expect_the_weights_of_peace("a leader whose ranks do not come to rest: " + run);
    const testing::Json changes = summary("run").at("rank_changes");
    EXPECT_EQ(changes.at("times"), 1) << run << changes;
    EXPECT_EQ(changes.at("lost"), 2) << run << changes;  // those of its machine were killed
    // The one at hand, and the one before it where not all machines had a copy of that.
    EXPECT_GE(changes.at("steps_again"), 1) << run << changes;
    EXPECT_LE(changes.at("steps_again"), 2) << run << changes;
  }
}

TEST_F(StoreMachines, EndTogetherWhenTheJobIsAskedTo) {
  const auto end_of_all = [&] {
    for (int machine = 0; machine < 3; ++machine) {
      program(machine).wait(kPatience);
    }
  };
  start_all("--elastic 1:6 --heartbeat 1");
  one_says("step 50/", {0, 1, 2});
  const int first = leader();
  ASSERT_GE(first, 0);
  kill(program(first).pid(), SIGINT);  // Ctrl-C is meant for the job
  EXPECT_EQ(program(first).wait(kPatience).code, 128 + SIGINT);
  end_of_all();

  const std::size_t steps = said("step 100/");
  start_all("--elastic 1:6 --heartbeat 1 --resume");
  expect_said("step 100/", steps);
  for (int machine = 0; machine < 3; ++machine) {
    kill(program(machine).pid(), SIGTERM);
  }
  end_of_all();
  EXPECT_GE(said("--resume"), 1);  // as rank 0 says how to go on
}

TEST_F(StoreMachines, OneThatHasJustComeStaysWhenItsLeaderGoes) {
  calm();
  const std::string elastic = "--elastic 1:6 --heartbeat 4";
  start_all(elastic);
  one_says("step 350/", {0, 1, 2});  // after a checkpoint, from which nobody resumes
  const int first = leader();
  ASSERT_GE(first, 0);
  const int coming = others(first).front();
  kill(program(coming).pid(), SIGKILL);
  program(coming).wait(kPatience);
  one_says("4 ranks, ZeRO-2", others(coming));
  kill(ranks(first).front(), SIGSTOP);  // so that the step at hand does not end
  start(coming, elastic);
  ASSERT_TRUE(says(first, name(coming) + " has come"));
  kill(program(first).pid(), SIGKILL);
  ASSERT_TRUE(says(coming, "trying to join the others again"));  // it has no ranks yet
  for (const int machine : others(first)) {
    expect_end(machine);
  }
  expect_the_weights_of_peace("a leader killed while one had come");
}

// Heartbeats, leases, who is stuck, and how old a file is.
TEST_F(StoreMachines, TakeNoNoticeOfClocksThatAreSet) {
  const auto library = env_string("TRIREME_CLOCK_LIBRARY");
  if (!library) {
    GTEST_SKIP() << "not with a sanitizer, which wants to be loaded first";
  }
  const auto set_clock = [&](std::int64_t seconds) {
    std::fstream(path("clock"), std::ios::in | std::ios::out | std::ios::binary)
        .write(reinterpret_cast<const char*>(&seconds), sizeof(seconds));
  };
  calm();
  std::ofstream(path("clock")) << std::string(sizeof(std::int64_t), '\0');
  const std::string elastic = "--elastic 6:6 --heartbeat 2 --stall 10";
  setenv("LD_PRELOAD", library->c_str(), 1);
  setenv("TRIREME_TEST_CLOCK", path("clock").c_str(), 1);
  start(0, elastic);
  start(1, elastic);
  unsetenv("LD_PRELOAD");
  start(2, elastic);
  constexpr std::int64_t kHour = 3600;
  one_says("step 50/", {0, 1, 2});
  set_clock(kHour);
  one_says("step 350/", {0, 1, 2});  // with a checkpoint, after 300
  set_clock(-kHour);
  for (const int machine : {0, 1, 2}) {
    expect_end(machine);
  }
  expect_the_weights_of_peace("clocks that were set");
  // They did see it: a checkpoint says when it was saved.
  EXPECT_FALSE(hours_ahead().empty());
  EXPECT_FALSE(hours_ahead().contains(0));
  EXPECT_EQ(said("6 ranks, ZeRO-2"), 1);  // the first world was the last
  for (const char* word :
       {"going on", "its ranks are ended", "not been heard from", "no progress"}) {
    EXPECT_EQ(said(word), 0) << word;
  }
}

TEST_F(StoreMachines, OutliveWhateverHappens) {
  outlive_whatever_happens([&](const std::string& elastic, RandomStream& random) {
    const std::size_t worlds = said("6 ranks, ZeRO-2");
    if (random.below(5) > 0) {
      const std::string what = disturb(elastic, random);
      expect_said("6 ranks, ZeRO-2", worlds);
      return what;
    }
    // A world may end of this, where the member led and the others took long to elect another.
    const std::size_t steps = said("step ");
    const int member = static_cast<int>(random.below(3));
    etcd_->signal(member, SIGKILL);
    etcd_->start_again(member);
    expect_said("step ", steps + 1);
    return "the store's member of machine " + std::to_string(member);
  });
}

// Whoever leads is hit like the others; the next one goes on with the record.
TEST_F(StoreMachines, DrillsOutliveTheLauncherThatKeepsTheirRecord) {
  steps_ = 900;
  calm();
  shell_ = kStartAgain;
  // Five faults in the first 500 steps, of every machine.
  drill_ = {"--drill", "kill-launcher:p=0.006;stop-launcher:3s,p=0.004", "--drill-seed", "13888"};
  start_all("--elastic 1:6 --heartbeat 1");
  for (int machine = 0; machine < 3; ++machine) {
    expect_end(machine);
  }
  expect_the_weights_of_peace("launchers that were killed and stopped");
  EXPECT_GT(said("going on with the record"), 0);
  const testing::Json all = testing::read_json(path("run") + "/drill.json");
  EXPECT_EQ(all.at("exit_code"), 0);
  std::set<int> machines;
  double last = 0;
  for (const testing::Json& fault : all.at("faults")) {
    EXPECT_GE(fault.at("at_seconds"), last) << fault;
    last = fault.at("at_seconds");
    if (fault.at("outcome") == "recovered") {
      machines.insert(fault.at("machine").get<int>());
      EXPECT_FALSE(fault.at("noticed").empty()) << fault;
      EXPECT_LE(fault.at("steps_again"), 2) << fault;
    }
  }
  EXPECT_EQ(machines, (std::set<int>{0, 1, 2}));
}

TEST_F(StoreMachines, RefuseWhatIsOfAnotherJob) {
  start(0, "--elastic 1:6 --heartbeat 1");
  ASSERT_TRUE(says(0, "waiting at"));
  start(1, "--elastic 1:6 --heartbeat 2");
  const Finished other = program(1).wait(kPatience);
  EXPECT_EQ(other.code, 2);
  EXPECT_NE(other.out.find("it has --heartbeat 1, and this launcher 2"), std::string::npos)
      << other.out;
  start(1, "--elastic 1:6 --heartbeat 1 --lr 0.5");
  const Finished settings = program(1).wait(kPatience);
  EXPECT_EQ(settings.code, 2);
  EXPECT_NE(settings.out.find("the program, its arguments or settings (a digest)"),
            std::string::npos)
      << settings.out;
  drill_ = {"--drill", "kill"};
  start(1, "--elastic 1:6 --heartbeat 1");
  const Finished drill = program(1).wait(kPatience);
  EXPECT_EQ(drill.code, 2);
  EXPECT_NE(drill.out.find("it has --drill and --drill-seed none, and this launcher \"kill\" with "
                           "seed 1: give the same on every machine"),
            std::string::npos)
      << drill.out;
  kill(program(0).pid(), SIGTERM);
  program(0).wait(kPatience);
}

}  // namespace
}  // namespace trireme::store_machines_test
