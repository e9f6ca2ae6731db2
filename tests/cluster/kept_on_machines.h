#pragma once

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "comm/rendezvous/membership_socket.h"
#include "support/machines.h"
#include "support/ranks.h"
#include "trireme/comm/launch_protocol.h"
#include "trireme/comm/world.h"
#include "trireme/core/error.h"
#include "trireme/core/file_descriptor.h"

// Worlds on machines (network namespaces), each with a launcher that does nothing but keep the
// memory of its ranks, and that is lost with its machine.

namespace trireme::testing {

struct KeptOnMachine {
  std::int64_t epoch;
  std::int64_t use;
  FileDescriptor memory;
};

class KeepingMachines {
 public:
  explicit KeepingMachines(int count) : machines_(count), kept_(static_cast<std::size_t>(count)) {}

  const Machines& machines() const { return machines_; }
  const std::vector<KeptOnMachine>& kept(int machine) const { return kept_[at(machine)]; }
  // All that it keeps is gone.
  void lose(int machine) { kept_[at(machine)].clear(); }

  // Runs `body` as the ranks of a world: so many of each machine (by machine; 0: none). Ranks end
  // in good order when they lose others. `meanwhile` is called again and again; it may kill.
  void run_world(
      const std::vector<int>& ranks,
      const std::function<void(const std::shared_ptr<World>&)>& body,
      const std::function<void()>& meanwhile = [] {}) {
    const std::string job = unique_job();
    const std::int64_t epoch = epoch_++;
    int size = 0;
    for (const int count : ranks) {
      size += count;
    }
    running_.clear();
    std::string place;
    int rank = 0;
    for (int machine = 0; machine < static_cast<int>(ranks.size()); ++machine) {
      for (int local = 0; local < ranks[at(machine)]; ++local, ++rank) {
        if (place.empty()) {
          place = machines_.address(machine) + ":" + job.substr(job.rfind(' ') + 1);
        }
        int ends[2] = {-1, -1};
        ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
        const std::map<const char*, int> variables = {{kEnvRank, rank},
                                                      {kEnvSize, size},
                                                      {kEnvLocalRank, local},
                                                      {kEnvLocalSize, ranks[at(machine)]},
                                                      {kEnvMembership, ends[1]}};
        pid_t pid = -1;
        machines_.inside(machine, [&] {
          pid = fork_rank(rank, [&](int) {
            for (const auto& [name, value] : variables) {
              setenv(name, std::to_string(value).c_str(), 1);
            }
            run_rank(job, epoch, place, body);
          });
        });
        close(ends[1]);
        running_.push_back({machine, pid, FileDescriptor(ends[0])});
      }
    }
    while (!running_.empty()) {
      serve();
      meanwhile();
    }
  }

  // The whole machine at once: processes, and what its launcher keeps.
  void kill_machine(int machine) {
    for (const Rank& rank : running_) {
      if (rank.machine == machine) {
        kill(rank.pid, SIGKILL);
      }
    }
    lost_.push_back(machine);
  }

 private:
  struct Rank {
    int machine;
    pid_t pid;
    FileDescriptor socket;
  };
  static std::size_t at(int machine) { return static_cast<std::size_t>(machine); }

  static void run_rank(const std::string& job,
                       std::int64_t epoch,
                       const std::string& place,
                       const std::function<void(const std::shared_ptr<World>&)>& body) {
    InitOptions options;
    options.job = job;
    options.token = "the token of this test";
    options.timeout = std::chrono::seconds(60);
    options.rendezvous = place;
    options.interfaces = {"eth0"};
    options.epoch = epoch;
    try {
      body(init(options));
    } catch (const CommError& error) {
      if (error.reason() != CommError::Reason::kPeerDied &&
          error.reason() != CommError::Reason::kPeerLeft) {
        throw;
      }
    }
  }

  void serve() {
    std::vector<pollfd> waits;
    for (const Rank& rank : running_) {
      waits.push_back({rank.socket.get(), POLLIN, 0});
    }
    poll(waits.data(), waits.size(), 2);
    for (Rank& rank : running_) {
      while (rank.socket.valid()) {
        auto packet = detail::receive_packet(rank.socket.get(), MSG_DONTWAIT);
        if (!packet) {
          if (errno == 0) {
            rank.socket.reset();
          }
          break;
        }
        answer(rank, std::move(*packet));
      }
    }
    std::erase_if(running_, [&](const Rank& rank) {
      int status = 0;
      if (waitpid(rank.pid, &status, WNOHANG) != rank.pid) {
        return false;
      }
      const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
      EXPECT_TRUE(status == 0 || killed) << "status " << status << " on machine " << rank.machine;
      return true;
    });
    if (running_.empty()) {
      for (const int machine : std::exchange(lost_, {})) {
        lose(machine);
      }
    }
  }

  void answer(Rank& rank, detail::Packet packet) {
    std::istringstream fields(packet.text);
    std::string word;
    std::int64_t epoch = -1;
    std::int64_t use = -1;
    fields >> word >> epoch >> use;
    auto& kept = kept_[at(rank.machine)];
    if (word == kKeepWord) {
      kept.push_back({epoch, use, std::move(packet.descriptors.front())});
    } else if (word == kForgetWord) {
      std::erase_if(
          kept, [&](const KeptOnMachine& each) { return each.epoch < epoch && each.use == use; });
    } else if (word == kKeptWord) {
      std::vector<int> all;
      for (const KeptOnMachine& each : kept) {
        all.push_back(each.memory.get());
      }
      try {
        detail::send_with_descriptors(rank.socket.get(), kKeptWord, all);
      } catch (const Error&) {
        // it has ended
      }
    }
  }

  Machines machines_;
  std::vector<std::vector<KeptOnMachine>> kept_;  // by machine
  std::vector<Rank> running_;
  std::vector<int> lost_;
  std::int64_t epoch_ = 0;
};

}  // namespace trireme::testing
