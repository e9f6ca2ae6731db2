#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trireme/comm/communicator.h"
#include "trireme/core/deadline.h"

namespace trireme {

// How a process joins its job. Everything has a default: under a launcher `init()` is enough.
struct InitOptions {
  // This process's place, for programs that start their own ranks. Both or neither; neither means
  // that the launcher's variables say it.
  std::optional<int> rank;
  std::optional<int> size;
  // With them, for ranks on several machines: this one's place among those of its machine. Both or
  // neither; neither means that all are on one.
  std::optional<int> local_rank;
  std::optional<int> local_size;
  // The job's name and secret. Empty: TRIREME_JOB and TRIREME_TOKEN, or what the launcher implies.
  // Ranks that meet at a TCP port need a token; "none" lets anyone join who can reach the port.
  std::string job;
  std::string token;
  // Which attempt at the job this is, from 0. Ranks of different attempts refuse each other, so
  // that one left over cannot join those started in its place.
  // Not set: TRIREME_EPOCH, else what the launcher says (torchrun and Slurm count restarts).
  std::optional<std::int64_t> epoch;
  // The limit of every wait, the rendezvous included. Zero: TRIREME_TIMEOUT, else kDefaultTimeout.
  Milliseconds timeout{0};
  // Processes of different versions refuse each other. Empty: TRIREME_PROGRAM_VERSION, else the
  // build ID of the executable.
  std::string program_version;
  // A thread that makes progress while this rank computes. Worth it only if the rank has a
  // processor to spare.
  bool progress_thread = false;
  // Half of the staging area of each rank, through which memory that is not in a SharedBuffer
  // passes. Rank 0's value applies.
  std::size_t stage_bytes = 512 << 10;
  // Ordinary memory, which is in no SharedBuffer, can be read by the other ranks of the machine
  // through the kernel (process_vm_readv): one copy instead of two. "auto": if every rank can read
  // every other's, else none does; "off": never. Empty: TRIREME_KERNEL_COPY, else "auto".
  std::string kernel_copy;
  // How ranks reach each other: "auto", "shm" (shared memory, one machine), "ucx" or "mpi". Empty:
  // TRIREME_BACKEND, else "auto": shared memory inside a machine, UCX between machines, MPI if
  // mpirun started ranks on several machines and nothing says where they can meet.
  std::string backend;
  // How ranks share the work of collectives, on one machine and between machines: "auto", "direct",
  // "ring", "tree", "doubling" or "aggregator" (docs/collectives.md). Empty: TRIREME_ALGORITHM,
  // else "auto". Ring sums have an order of their own.
  std::string algorithm;
  // Network interfaces to use, all at once. Empty: TRIREME_INTERFACES, else what UCX chooses.
  std::vector<std::string> interfaces;
  // Where rank 0 can be reached from other machines, "HOST:PORT". Empty: TRIREME_RENDEZVOUS, else
  // what the launcher implies.
  std::string rendezvous;
  // Of rank 0: a descriptor that listens there already, open until `init` returns. -1: none.
  int listener = -1;
  // Encrypt what ranks send each other over a network, for all ranks alike. What steers them is
  // authenticated in any case (docs/security.md). Not set: TRIREME_ENCRYPT (on or off), else off.
  std::optional<bool> encrypt;
  // Check everything that ranks send each other over a network, so that a flipped bit in a gradient
  // is found, and the rank named that it came from; where all is encrypted it is checked, too. For
  // all ranks alike. Not set: TRIREME_CHECKSUMS (on or off), else off.
  std::optional<bool> checksums;
  // Sums add up groups of this many ranks first, then the groups' sums: with as many as each
  // machine has ranks, less crosses the network. Part of the order of summation, so the same on
  // all ranks, and the bits differ from those of another group. 0: TRIREME_SUM_GROUP, else 1.
  int sum_group = 0;
  // Where flight records go after a failure. Empty: TRIREME_LOG_DIR, else a folder for this job
  // under the system's temporary folder.
  std::string flight_folder;
};

inline constexpr Milliseconds kDefaultTimeout{300'000};

// How ordinary memory gets from rank to rank inside a machine.
struct OrdinaryMemory {
  bool one_copy = false;  // by the kernel; else two, through shared memory
  // Why two, and what would change that; empty with one copy, and where a rank is alone.
  std::string reason;
  std::string remedy;
};

// All the ranks of a job, and this process's place among them. A communicator of all of them.
class World final : public Communicator {
 public:
  // What is known of a world beside its ranks.
  struct Facts {
    int local_rank = 0;
    int local_size = 1;
    int machine_rank = 0;
    int machines = 1;
    std::int64_t epoch = 0;
    std::string launcher;
    std::string description;
    OrdinaryMemory ordinary_memory;
  };
  World(Parts parts, Facts facts) : Communicator(std::move(parts)), facts_(std::move(facts)) {}

  int local_rank() const { return facts_.local_rank; }
  int local_size() const { return facts_.local_size; }
  // Which machine this rank is on, of how many.
  int machine_rank() const { return facts_.machine_rank; }
  int machines() const { return facts_.machines; }
  // Which attempt at the job this is (InitOptions::epoch).
  std::int64_t epoch() const { return facts_.epoch; }
  // What carries the data: "shared memory, ordinary memory in one copy", "UCX 1.13.1 over eth0 and
  // shared memory, ordinary memory in two copies", ...
  const std::string& description() const { return facts_.description; }
  // Of this rank's machine, found out when the world was made; the same on all its ranks.
  const OrdinaryMemory& ordinary_memory() const { return facts_.ordinary_memory; }
  // Who started it: "trireme run", "torchrun", "mpirun (Open MPI)", "mpiexec (MPICH)", "srun",
  // "init options" or "none".
  const std::string& launcher() const { return facts_.launcher; }

 private:
  Facts facts_;
};

// Joins the job this process was started for, and returns when every rank has. A process that no
// launcher started is a world of its own. Collective, blocking; may be called again, for another
// world beside the first or after it, as long as every rank does.
// Throws ConfigError for variables that make no sense, CommError when ranks are missing at the
// deadline or when rank 0 refuses this process, MemoryError.
std::shared_ptr<World> init(const InitOptions& options = {});

}  // namespace trireme
