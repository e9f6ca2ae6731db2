#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <signal.h>
#include <sys/types.h>

#include "support/processes.h"

// Several machines on this host: network namespaces with two interfaces each, made by
// scripts/machines, which says what they share and what not. Only root can have them.

namespace trireme::testing {

class Machines {
 public:
  // Why this host cannot have machines, or not this feature of them ("switch", "rate", "delay",
  // "loss", "cut"); nothing where it can. A test begins with
  //   if (const auto reason = Machines::unavailable()) GTEST_SKIP() << *reason;
  static std::optional<std::string> unavailable(const std::string& feature = "");

  // Throws where it fails, also on a host that cannot. Removes what killed tests have left behind.
  // Two machines are joined directly, more of them or `with_switch` through a bridge.
  explicit Machines(int count, bool with_switch = false);
  Machines(const Machines&) = delete;
  Machines& operator=(const Machines&) = delete;
  // Kills what still runs there.
  ~Machines();

  const std::string& name() const { return name_; }
  int size() const { return count_; }
  // The host name of a machine, which the others resolve to its address on eth0.
  std::string host(int machine) const;
  std::string address(int machine, int rail = 0) const;
  // scripts/machines, for `mpirun --mca plm_rsh_agent "SCRIPT rsh"` and its like.
  static std::string script();

  // Starts a program on a machine. `environment` (NAME=VALUE) is added to this process's.
  std::unique_ptr<Program> run(int machine,
                               const std::vector<std::string>& command,
                               const std::vector<std::string>& environment = {}) const;
  // Calls `body` in a thread that is on the machine. A socket made there stays on the machine, and
  // so does a process forked there.
  void inside(int machine, const std::function<void()>& body) const;
  // The processes on a machine, and a signal to all of them. Killed processes close their
  // connections; a machine that loses power does not: cut it first.
  std::vector<pid_t> processes(int machine) const;
  void kill(int machine, int signal = SIGKILL) const;

  struct Bytes {
    std::int64_t sent = 0;
    std::int64_t received = 0;  // counts what `cut` and `loss` then drop
  };
  Bytes bytes(int machine, int rail) const;

  // "off" undoes each. Rate is what every interface of every machine may send ("1gbit"), delay what
  // is added to every packet that a machine sends, loss what part of the packets from and to it.
  void rate(const std::string& rate) const;
  void delay(int machine, const std::string& milliseconds) const;
  void loss(int machine, const std::string& percent) const;
  // Loses all packets from and to a machine over one interface or "all". Nobody is told: links stay
  // up, no connection is reset.
  void cut(int machine, const std::string& interface = "all") const;
  void mend(int machine) const;

 private:
  std::string command(std::vector<std::string> words) const;

  std::string name_;
  int count_;
  pid_t owner_;
};

}  // namespace trireme::testing
