#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "support/free_port.h"
#include "support/processes.h"

// Several launchers of one job on this machine, over the loopback address.

namespace trireme::testing {

using std::chrono::milliseconds;

inline constexpr char kSecret[] = "TRIREME_TOKEN=a secret of the tests";

inline void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in: " << text;
  }
}

inline void expect_no_part(const std::string& text, const std::string& part) {
  EXPECT_EQ(text.find(part), std::string::npos) << "\"" << part << "\" in: " << text;
}

// One job of several launchers that meet at one port.
class Launchers {
 public:
  explicit Launchers(int count) : count_(count), port_(free_port()), mark_(unique_mark()) {}

  std::string place() const { return "127.0.0.1:" + std::to_string(port_); }
  int port() const { return port_; }
  const std::string& mark() const { return mark_; }

  // Words of the command line for one machine, the program to be added after them.
  std::vector<std::string> command(int machine, int ranks) const {
    return {trireme_binary(),
            "run",
            "--nnodes",
            std::to_string(count_),
            "--node-rank",
            std::to_string(machine),
            "--rendezvous",
            place(),
            "-n",
            std::to_string(ranks)};
  }

  struct Start {
    int machine = 0;
    int ranks = 1;
    std::string script{};
    std::vector<std::string> options{};
    std::string secret = kSecret;
    int nnodes = 0;  // 0: the right number
  };
  std::unique_ptr<Program> start(const Start& start) const {
    auto words = command(start.machine, start.ranks);
    if (start.nnodes != 0) {
      words[3] = std::to_string(start.nnodes);
    }
    words.insert(words.end(), start.options.begin(), start.options.end());
    words.insert(words.end(), {"--", "/bin/sh", "-c", start.script});
    return std::make_unique<Program>(std::move(words),
                                     std::vector<std::string>{mark_, start.secret});
  }

  // The same script on every machine, `ranks[k]` times on machine k.
  std::vector<Finished> run(const std::vector<int>& ranks,
                            const std::string& script,
                            const std::vector<std::string>& options = {}) const {
    std::vector<std::unique_ptr<Program>> programs;
    // The last one first: machine 0 need not be there before the others.
    for (int machine = count_ - 1; machine >= 0; --machine) {
      programs.push_back(
          start({machine, ranks[static_cast<std::size_t>(machine)], script, options}));
    }
    std::vector<Finished> results(programs.size());
    for (std::size_t i = 0; i < programs.size(); ++i) {
      results[programs.size() - 1 - i] = programs[i]->wait(milliseconds(60'000));
    }
    return results;
  }

  // Ranks that are killed with their launcher may take a moment to vanish.
  void expect_nothing_left() const {
    EXPECT_TRUE(comes_true([&] { return processes_with(mark_).empty(); }));
  }

 private:
  int count_;
  int port_;
  std::string mark_;
};

// The value after "name=" in the line of `rank`.
inline std::string value_of(const std::string& output, int rank, const std::string& name) {
  const auto line = output.find("[" + std::to_string(rank) + "] ");
  const auto at = line == std::string::npos ? line : output.find(" " + name + "=", line);
  if (at == std::string::npos || at > output.find('\n', line)) {
    return "not there";
  }
  const auto begin = at + name.size() + 2;
  return output.substr(begin, output.find_first_of(" \n", begin) - begin);
}

inline constexpr char kPrintPlace[] =
    "echo here: rank=$TRIREME_RANK size=$TRIREME_WORLD_SIZE local=$TRIREME_LOCAL_RANK "
    "locals=$TRIREME_LOCAL_SIZE node=$TRIREME_NODE_RANK nodes=$TRIREME_NODES job=$TRIREME_JOB "
    "token=$TRIREME_TOKEN place=$TRIREME_RENDEZVOUS fd=${TRIREME_RENDEZVOUS_FD-none}";

}  // namespace trireme::testing
