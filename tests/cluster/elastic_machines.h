#pragma once

#include <chrono>
#include <csignal>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "support/machines.h"
#include "tools/train_runs.h"

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
    return gpt() + "--threads 1 --log-every 50 --eval-every 300 --steps " + std::to_string(steps_) +
           " ";
  }
  void calm() const { train_well("calm", settings() + "-n 1"); }

  // How the launchers find each other.
  virtual std::string meeting() const { return "--rendezvous " + machines_->address(0) + ":29700"; }
  void start(int machine, const std::string& elastic, int ranks = 2) {
    Words all = command("run", settings() + "--timeout 60 --zero 2 -n " + std::to_string(ranks));
    all.insert(all.begin(), {"sh", "-c", "exec \"$@\" 2>&1", "sh"});  // all in one stream
    const std::string place = "--nnodes 3 --node-rank " + std::to_string(machine) + " " +
                              meeting() + " --interfaces eth0 --save-every 300 " + elastic;
    for (const std::string& word : words(place)) {
      all.push_back(word);
    }
    programs_[static_cast<std::size_t>(machine)] =
        machines_->run(machine, all, {"TRIREME_TOKEN=of this test", mark_});
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

  // Does one thing to the job, and undoes what is not undone by itself; what.
  std::string disturb(const std::string& elastic, RandomStream& random) {
    const int machine = 1 + static_cast<int>(random.below(2));  // whose launcher may be lost
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
        machines_->kill(machine);
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

  std::int64_t steps_ = 700;
  std::unique_ptr<Machines> machines_;
  std::vector<std::unique_ptr<Program>> programs_;
  const std::string mark_ = unique_mark();
};

}  // namespace trireme::testing
