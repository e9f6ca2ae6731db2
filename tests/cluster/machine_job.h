#pragma once

#include <chrono>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "support/machines.h"
#include "support/processes.h"
#include "trireme/core/error.h"

namespace trireme::testing {

inline void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in: " << text;
  }
}

// The lines of a text that begin with `prefix`.
inline std::string lines_of(const std::string& text, const std::string& prefix) {
  std::istringstream lines(text);
  std::string found;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(prefix)) {
      found += line + "\n";
    }
  }
  return found;
}

inline constexpr char kToken[] = "TRIREME_TOKEN=the secret of this test";

// A job of `trireme run` over machines: one launcher on each, with a program of the tests as ranks.
class MachineJob {
 public:
  explicit MachineJob(std::vector<int> ranks)
      : ranks_(std::move(ranks)), machines_(static_cast<int>(ranks_.size())), mark_(unique_mark()) {
    place = machines_.host(0) + ":29500";
  }

  const Machines& machines() const { return machines_; }
  // "machine 1 (HOST)", and "on machine 1, HOST", as messages have it.
  std::string title(int machine) const {
    return detail::concat("machine ", machine, " (", machines_.host(machine), ")");
  }
  std::string on(int machine) const {
    return detail::concat("on machine ", machine, ", ", machines_.host(machine), ")");
  }
  // Where the ranks of a machine write their flight records.
  std::string folder(int machine) const { return detail::concat(logs_.path(), "/", machine); }

  // What may be changed before `start`.
  std::string program_name = "worker";
  std::string place;
  std::vector<std::string> options = {"--timeout", "5"};

  void start(int machine,
             const std::string& mode,
             const std::vector<std::string>& environment = {kToken}) {
    std::vector<std::string> command = {trireme_binary(),
                                        "run",
                                        "--nnodes",
                                        std::to_string(ranks_.size()),
                                        "--node-rank",
                                        std::to_string(machine),
                                        "--rendezvous",
                                        place,
                                        "-n",
                                        std::to_string(ranks_[static_cast<std::size_t>(machine)]),
                                        "--log-dir",
                                        folder(machine)};
    command.insert(command.end(), options.begin(), options.end());
    command.insert(command.end(), {"--", test_binary(program_name), mode});
    std::vector<std::string> all = environment;
    all.push_back(mark_);
    programs_.resize(ranks_.size());
    programs_[static_cast<std::size_t>(machine)] = machines_.run(machine, command, all);
  }
  void start_all(const std::string& mode) {
    for (int machine = 0; machine < machines_.size(); ++machine) {
      start(machine, mode);
    }
  }
  // All ranks are in the middle of their collectives.
  bool wait_until_looping() const {
    for (std::size_t machine = 0; machine < programs_.size(); ++machine) {
      if (!programs_[machine]->wait_for_output("looping", ranks_[machine])) {
        ADD_FAILURE() << "machine " << machine << ": " << programs_[machine]->output();
        return false;
      }
    }
    return true;
  }

  const Program& program(int machine) const {
    return *programs_[static_cast<std::size_t>(machine)];
  }
  Finished wait(int machine) {
    return programs_[static_cast<std::size_t>(machine)]->wait(std::chrono::seconds(120));
  }

  void expect_nothing_left() const {
    EXPECT_TRUE(comes_true([&] { return processes_with(mark_).empty(); }));
  }

 private:
  std::vector<int> ranks_;  // of each machine
  Machines machines_;
  std::string mark_;
  TemporaryFolder logs_;
  std::vector<std::unique_ptr<Program>> programs_;
};

}  // namespace trireme::testing
