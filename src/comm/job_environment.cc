#include "comm/job_environment.h"

#include <limits>

#include <unistd.h>

#include "trireme/comm/launch_protocol.h"
#include "trireme/core/environment.h"
#include "trireme/core/error.h"

namespace trireme::detail {
namespace {

constexpr std::int64_t kMaxRanks = 1 << 20;

// The names under which one launcher tells a process its place.
struct Variables {
  const char* launcher;
  const char* rank;
  const char* size;
  const char* local_rank;  // null: the launcher does not say
  const char* local_size;
};

constexpr Variables kTrireme = {"trireme run", kEnvRank, kEnvSize, kEnvLocalRank, kEnvLocalSize};
constexpr Variables kTorchrun = {
    "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
constexpr Variables kOpenMpi = {"mpirun (Open MPI)",
                                "OMPI_COMM_WORLD_RANK",
                                "OMPI_COMM_WORLD_SIZE",
                                "OMPI_COMM_WORLD_LOCAL_RANK",
                                "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr Variables kMpich = {
    "mpiexec (MPICH)", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};
constexpr Variables kSlurm = {"srun", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", nullptr};

JobEnvironment read(const Variables& names) {
  JobEnvironment job;
  job.launcher = names.launcher;
  const auto size = env_integer(names.size, 1, kMaxRanks);
  TRIREME_CHECK(size,
                names.rank,
                " is set and ",
                names.size,
                " is not: ",
                names.launcher,
                " sets both; set both or unset both");
  job.size = static_cast<int>(*size);
  job.rank = static_cast<int>(*env_integer(names.rank, 0, kMaxRanks));
  TRIREME_CHECK(job.rank < job.size,
                names.rank,
                "=",
                job.rank,
                " is outside the world of ",
                names.size,
                "=",
                job.size,
                ": use 0 to ",
                job.size - 1);
  job.local_rank = job.rank;
  job.local_size = job.size;
  if (names.local_rank != nullptr) {
    job.local_rank =
        static_cast<int>(env_integer(names.local_rank, 0, kMaxRanks).value_or(job.rank));
  }
  if (names.local_size != nullptr) {
    job.local_size =
        static_cast<int>(env_integer(names.local_size, 1, kMaxRanks).value_or(job.size));
  }
  TRIREME_CHECK(job.local_size <= job.size && job.local_rank < job.local_size,
                names.launcher,
                " says that this is local rank ",
                job.local_rank,
                " of ",
                job.local_size,
                " in a world of ",
                job.size,
                ", which cannot be");
  return job;
}

std::string value(const char* name) {
  return env_string(name).value_or("");
}

// srun sets its variables in every step; the shell of a batch job has some of them too, with a
// step that is no number of a step.
bool in_slurm_step() {
  const auto step = parse_integer(value("SLURM_STEP_ID"));
  return env_string("SLURM_PROCID") && step &&
         *step < std::numeric_limits<std::uint32_t>::max() - 16;
}

}  // namespace

JobEnvironment read_job_environment() {
  if (env_string(kTrireme.rank)) {
    JobEnvironment job = read(kTrireme);
    job.job = value(kEnvJob);
    return job;
  }
  if (env_string(kTorchrun.rank) && env_string(kTorchrun.size)) {
    JobEnvironment job = read(kTorchrun);
    job.job = concat("torchrun ",
                     value("MASTER_ADDR"),
                     " ",
                     value("MASTER_PORT"),
                     " ",
                     value("TORCHELASTIC_RUN_ID"),
                     " ",
                     value("TORCHELASTIC_RESTART_COUNT"));
    return job;
  }
  if (env_string(kOpenMpi.rank)) {
    JobEnvironment job = read(kOpenMpi);
    job.job = concat("openmpi ",
                     value("PMIX_NAMESPACE"),
                     " ",
                     value("OMPI_MCA_ess_base_jobid"),
                     " ",
                     value("OMPI_MCA_orte_hnp_uri"));
    return job;
  }
  if (in_slurm_step()) {
    JobEnvironment job = read(kSlurm);
    TRIREME_CHECK(env_integer("SLURM_NNODES", 1, kMaxRanks).value_or(1) == 1,
                  "srun started this job on ",
                  value("SLURM_NNODES"),
                  " machines; ranks of several machines cannot join each other yet: "
                  "use --nodes=1");
    job.job = concat("slurm ",
                     value("SLURM_JOB_ID"),
                     " ",
                     value("SLURM_STEP_ID"),
                     " ",
                     value("SLURM_RESTART_COUNT"));
    return job;
  }
  if (env_string(kMpich.rank)) {
    JobEnvironment job = read(kMpich);
    // MPICH names its jobs nowhere; its ranks on one machine are children of one proxy.
    job.job = concat("mpich ", value("PMI_JOBID"), " ", value("PMI_PORT"), " ", getppid());
    return job;
  }
  return {};
}

}  // namespace trireme::detail
