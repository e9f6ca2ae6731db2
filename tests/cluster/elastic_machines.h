#pragma once

#include <chrono>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <unistd.h>

#include "support/machines.h"
#include "tools/train_runs.h"
#include "trireme/core/environment.h"

namespace trireme::testing {

inline std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) {
    ++count;
  }
  return count;
}

// An elastic training over three machines, whose weights at the end are those of one process in
// peace.
class ElasticMachines : public TrainRuns {
 protected:
  static constexpr std::chrono::seconds kPatience{120};

  void SetUp() override {
    if (const auto reason = Machines::unavailable("cut")) {
      GTEST_SKIP() << *reason;
    }
    machines_ = std::make_unique<Machines>(3);
    programs_.resize(3);
  }
  void TearDown() override {
    if (machines_) {
      EXPECT_TRUE(comes_true([&] { return processes_with(mark_).empty(); }));
    }
  }

  std::string settings() const {
    return gpt() + "--threads 1 --log-every " + std::to_string(log_every_) +
           " --eval-every 300 --steps " + std::to_string(steps_) + " ";
  }
  void calm() const { train_well("calm", settings() + "-n 1"); }

  // How the launchers find each other.
  virtual std::string meeting() const { return "--rendezvous " + machines_->address(0) + ":29700"; }
  void start(int machine, const std::string& elastic, int ranks = 2) {
    Words all = command("run", settings() + "--timeout 60 --zero 2 -n " + std::to_string(ranks));
    all.insert(all.begin(), {"sh", "-c", shell_, "sh"});
    all.insert(all.end(), drill_.begin(), drill_.end());
    const std::string place = "--nnodes 3 --node-rank " + std::to_string(machine) + " " +
                              meeting() + " --interfaces eth0 --save-every 300 " + elastic;
    for (const std::string& word : words(place)) {
      all.push_back(word);
    }
    std::unique_ptr<Program>& place_of = programs_[static_cast<std::size_t>(machine)];
    if (place_of) {
      former_.push_back(std::move(place_of));
    }
    place_of = machines_->run(machine, all, {"TRIREME_TOKEN=of this test", mark_});
  }
  // How often any launcher has said it, those that are gone included.
  std::size_t said(const std::string& what) const {
    std::size_t times = 0;
    for (const auto* some : {&former_, &programs_}) {
      for (const std::unique_ptr<Program>& one : *some) {
        times += one ? count_of(one->output(), what) : 0;
      }
    }
    return times;
  }
  void start_all(const std::string& elastic) {
    for (int machine = 0; machine < 3; ++machine) {
      start(machine, elastic);
    }
  }
  Program& program(int machine) { return *programs_[static_cast<std::size_t>(machine)]; }
  bool says(int machine, const std::string& what, int times = 1) {
    const bool said = program(machine).wait_for_output(what, times);
    EXPECT_TRUE(said) << "machine " << machine << ", no \"" << what
                      << "\" in: " << program(machine).output();
    return said;
  }
  std::string name(int machine) const {
    return "machine " + std::to_string(machine) + " (" + machines_->host(machine) + ")";
  }

  std::vector<pid_t> ranks(int machine) const {
    std::vector<pid_t> found;
    for (const pid_t process : machines_->processes(machine)) {
      std::ifstream file("/proc/" + std::to_string(process) + "/comm");
      std::string comm;
      std::getline(file, comm);
      if (comm == "trireme-worker") {
        found.push_back(process);
      }
    }
    return found;
  }

  void expect_the_weights_of_peace(const std::string& what) const {
    EXPECT_TRUE(read_file(path("run") + "/model.safetensors") ==
                read_file(path("calm") + "/model.safetensors"))
        << what;
    EXPECT_EQ(history(path("run")), history(path("calm"))) << what;
  }
  void expect_end(int machine, int code = 0) {
    // The steps that are left may be all of them.
    const auto for_the_steps = std::chrono::milliseconds(40 * steps_);
    const Finished finished = program(machine).wait(kPatience + for_the_steps);
    EXPECT_EQ(finished.code, code) << "machine " << machine << "\n" << finished.out;
  }

  // The first of the machines whose launchers may be lost.
  virtual int dispensable() const { return 1; }
  virtual void kill_machine(int machine) { machines_->kill(machine); }

  // Does one thing to the job, and undoes what is not undone by itself; what.
  std::string disturb(const std::string& elastic, RandomStream& random) {
    const auto many = static_cast<std::uint64_t>(3 - dispensable());
    const int machine = dispensable() + static_cast<int>(random.below(many));
    const std::string where = " " + std::to_string(machine);
    switch (random.below(4)) {
      case 0: {
        const int any = static_cast<int>(random.below(3));
        const std::vector<pid_t> there = ranks(any);
        if (!there.empty()) {
          kill(there[random.below(there.size())], SIGKILL);
        }
        return "a rank of machine " + std::to_string(any);
      }
      case 1:
        kill_machine(machine);
        start(machine, elastic);
        return "machine" + where;
      case 2:
        kill(program(machine).pid(), SIGKILL);
        program(machine).wait(kPatience);
        start(machine, elastic);
        return "the launcher of machine" + where;
      default: {
        // A busy machine may have lost its lease before, without our doing.
        const std::string words = "its ranks are ended";
        const std::size_t before = count_of(program(machine).output(), words);
        machines_->cut(machine);
        program(machine).wait_for_output(words, static_cast<int>(before) + 1);
        machines_->mend(machine);
        return "the links of machine" + where;
      }
    }
  }

  // As many faults as TRIREME_TEST_FAULTS says (6 where it says nothing), each of which is
  // recovered from, with all six ranks, before the next.
  template <typename Disturb>
  void outlive_whatever_happens(const Disturb& disturb_once) {
    const std::int64_t faults = env_integer("TRIREME_TEST_FAULTS", 1, 10'000).value_or(6);
    steps_ = 300 + 150 * faults;
    calm();
    const std::string elastic = "--elastic 1:6 --restart 100000 --heartbeat 1";
    start_all(elastic);
    ASSERT_TRUE(comes_true([&] { return said("step 50/") > 0; }));
    RandomStream random(7);
    std::map<std::string, int> done;
    for (std::int64_t fault = 1; fault <= faults; ++fault) {
      usleep(static_cast<useconds_t>(1000 * random.below(300)));
      const std::string what = disturb_once(elastic, random);
      std::printf("%lld: %s\n", static_cast<long long>(fault), what.c_str());
      std::fflush(stdout);
      ++done[what];
      ASSERT_FALSE(HasFailure()) << fault << ": " << what;
    }
    for (const int machine : {0, 1, 2}) {
      expect_end(machine);
    }
    expect_the_weights_of_peace("whatever happens");
    for (const auto& [what, times] : done) {
      std::printf("%3d times %s\n", times, what.c_str());
    }
  }
  // Any launcher says it more than `times` times.
  void expect_said(const std::string& what, std::size_t times) {
    const auto late = std::chrono::steady_clock::now() + kPatience;
    bool heard = false;
    while (!heard && std::chrono::steady_clock::now() < late) {
      heard = comes_true([&] { return said(what) > times; });
    }
    EXPECT_TRUE(heard) << "no new \"" << what << "\" in:\n"
                       << program(0).output() << program(1).output() << program(2).output();
  }

  // A launcher that is killed is started again by whatever looks after its machine, as systemd
  // does.
  static constexpr char kStartAgain[] =
      "while :; do \"$@\" 2>&1; code=$?; [ $code = 137 ] || exit $code; done";

  std::string shell_ = "exec \"$@\" 2>&1";  // all in one stream
  Words drill_;                             // flags
  std::int64_t steps_ = 700;
  int log_every_ = 50;
  std::unique_ptr<Machines> machines_;
  std::vector<std::unique_ptr<Program>> programs_;
  std::vector<std::unique_ptr<Program>> former_;
  const std::string mark_ = unique_mark();
};

}  // namespace trireme::testing
