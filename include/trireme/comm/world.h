#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "trireme/comm/communicator.h"
#include "trireme/core/deadline.h"

namespace trireme {

// How a process joins its job. Everything has a default: under a launcher `init()` is enough.
struct InitOptions {
  // This process's place, for programs that start their own ranks. Both or none; none means that
  // the launcher's variables say it.
  std::optional<int> rank;
  std::optional<int> size;
  // The job's name and secret. Empty: TRIREME_JOB and TRIREME_TOKEN, or what the launcher implies.
  std::string job;
  std::string token;
  // Of every wait, the rendezvous included. Zero: TRIREME_TIMEOUT, else kDefaultTimeout.
  Milliseconds timeout{0};
  // Processes of different versions refuse each other. Empty: TRIREME_PROGRAM_VERSION, else the
  // build ID of the executable.
  std::string program_version;
  // A thread that makes progress while this rank computes. Worth it only where the rank has a
  // processor to spare.
  bool progress_thread = false;
  // Half of the staging area of each rank, through which memory that is not in a SharedBuffer
  // passes. Rank 0's value counts.
  std::size_t stage_bytes = 512 << 10;
  // Where flight records go after a failure. Empty: TRIREME_LOG_DIR, else a folder for this job
  // under the system's temporary folder.
  std::string flight_folder;
};

inline constexpr Milliseconds kDefaultTimeout{300'000};

// All the ranks of a job, and this process's place among them. A communicator of all of them.
class World final : public Communicator {
 public:
  World(std::unique_ptr<Communicator> backend,
        int local_rank,
        int local_size,
        std::string launcher);

  int rank() const override { return backend_->rank(); }
  int size() const override { return backend_->size(); }
  int local_rank() const { return local_rank_; }
  int local_size() const { return local_size_; }
  // Who started it: "trireme run", "torchrun", "mpirun (Open MPI)", "mpiexec (MPICH)", "srun",
  // "init options" or "none".
  const std::string& launcher() const { return launcher_; }

  SharedBuffer allocate(std::size_t bytes) override { return backend_->allocate(bytes); }
  CommUse use() const override { return backend_->use(); }
  void abort(const std::string& reason) override { backend_->abort(reason); }

 protected:
  Work submit(Operation operation) override;

 private:
  std::unique_ptr<Communicator> backend_;
  int local_rank_;
  int local_size_;
  std::string launcher_;
};

// Joins the job this process was started for, and returns when every rank has. A process that no
// launcher started is a world of its own. Collective, blocking; may be called again, for another
// world beside the first or after it, as long as every rank does.
// Throws ConfigError for variables that make no sense, CommError when ranks are missing at the
// deadline or when rank 0 refuses this process, MemoryError.
std::shared_ptr<World> init(const InitOptions& options = {});

}  // namespace trireme
