#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace trireme::detail {

// A process's place in its job, as the launcher's variables say.
struct JobEnvironment {
  std::string launcher = "none";
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  std::string job;            // what tells this job from others on the machine; empty: nothing does
  bool job_is_local = false;  // ranks on other machines have another name for it
  std::int64_t epoch = 0;     // which attempt at it this is, of all ranks alike
  // Where rank 0 can be reached from other machines ("HOST:PORT"; empty: nothing says), and which
  // variables say so.
  std::string rendezvous;
  std::string rendezvous_source;
};

// The name of the first machine in a list of Slurm's ("node[03-05,9],gpu1"), and how many tasks
// machine `node` has in one of its lists of numbers ("2(x3),1"); nothing where the text is no such
// list.
std::string first_slurm_host(const std::string& list);
std::optional<int> slurm_tasks_of(const std::string& list, int node);

// Where the mpiexec of MPICH listens that started the proxy with this command line (words that end
// with a zero each), and which of its groups of processes it serves: the same for all ranks of a
// job, on every machine. Empty where it is no such proxy.
std::string hydra_control_place(const std::string& command_line);

// Reads, in this order, the variables of trireme run, torchrun, Open MPI, Slurm's srun and MPICH;
// the first that names a rank counts. TRIREME_JOB names the job under each, TRIREME_EPOCH the
// attempt at it. Throws ConfigError for
// values that make no sense.
JobEnvironment read_job_environment();

}  // namespace trireme::detail
