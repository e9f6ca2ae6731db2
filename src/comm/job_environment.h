#pragma once

#include <string>

namespace trireme::detail {

// A process's place in its job, as the launcher's variables say.
struct JobEnvironment {
  std::string launcher = "none";
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  std::string job;  // what tells this job from others on the machine; empty: nothing does
};

// Reads, in this order, the variables of trireme run, torchrun, Open MPI, MPICH and Slurm's srun;
// the first that names a rank counts. Throws ConfigError for values that make no sense.
JobEnvironment read_job_environment();

}  // namespace trireme::detail
