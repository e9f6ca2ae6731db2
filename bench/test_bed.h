#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "together.h"
#include "trireme/launch/launcher.h"

namespace trireme::bench {

// Machines to measure on: network namespaces of this host, made by scripts/machines, each with its
// share of the processors. They share the host's files. They go away with the object; what a killed
// benchmark has left goes away with the next.
class TestBed {
 public:
  // Throws ConfigError where this host cannot have them; only root can.
  explicit TestBed(int machines);
  TestBed(const TestBed&) = delete;
  TestBed& operator=(const TestBed&) = delete;
  ~TestBed();

  int size() const { return machines_; }
  std::string address(int machine) const;
  // The processors of a machine, "0" or "0,1". With fewer processors than machines, all of them.
  const std::string& processors(int machine) const;
  // Whether so many ranks of a machine have a processor each.
  bool has_room_for(int ranks) const;
  // The command as one that runs on the machine, on its processors.
  std::vector<std::string> on(int machine, const std::vector<std::string>& command) const;
  // mpirun of Open MPI, started on machine 0, with `ranks` of the command on each machine, over
  // these interfaces; shared memory only inside a machine. `variables` are NAME=VALUE.
  std::vector<std::string> under_mpirun(int ranks,
                                        const std::string& interfaces,
                                        const std::vector<std::string>& variables,
                                        const std::vector<std::string>& command) const;

  // Limits what each interface sends, "1gbit".
  void rate(const std::string& rate) const;
  // What all machines together have sent over all interfaces so far.
  std::int64_t bytes_sent() const;

 private:
  std::string script(std::vector<std::string> words) const;

  HeldSignals held_;  // first, so that signals are let through when the machines are gone
  std::string name_;
  int machines_;
  std::vector<std::string> processors_;
  int fewest_processors_ = 0;
};

// Starts a job's ranks on every machine of the test bed with `trireme run` (with mpirun where the
// backend is "mpi"), one thread each. Of the options: command, ranks (of each machine), interfaces
// (default: eth0), backend, algorithm, sum_group. Returns the exit code.
int launch_on(const TestBed& bed, const LaunchOptions& job);

// `trireme train` with these flags on the first so many machines, one rank of one thread on each.
// What machine K prints goes to the file `output`-K. Returns the exit code.
int train_on(const TestBed& bed,
             int machines,
             const std::vector<std::string>& flags,
             const std::string& output);

}  // namespace trireme::bench
