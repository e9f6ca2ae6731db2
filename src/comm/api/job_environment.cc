#include "comm/api/job_environment.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>
#include <vector>

#include <unistd.h>

#include "trireme/comm/launch_protocol.h"
#include "trireme/core/counted.h"
#include "trireme/core/environment.h"
#include "trireme/core/error.h"
#include "trireme/core/printable.h"

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
                "{} is set and {} is not: {} sets both; set both or unset both",
                {names.rank, names.size, names.launcher});
  job.size = static_cast<int>(*size);
  job.rank = static_cast<int>(*env_integer(names.rank, 0, kMaxRanks));
  TRIREME_CHECK(job.rank < job.size,
                "{}={} is outside the world of {}={}: use 0 to {}",
                {names.rank, job.rank, names.size, job.size, job.size - 1});
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
                "{} says that this is local rank {} of {} in a world of {}, which is impossible",
                {names.launcher, job.local_rank, job.local_size, job.size});
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

// What the user says counts, whatever the launcher implies.
JobEnvironment with_what_the_user_says(JobEnvironment job) {
  if (const auto name = env_string(kEnvJob)) {
    job.job = *name;
    job.job_is_local = false;
  }
  if (const auto place = env_string(kEnvRendezvous)) {
    job.rendezvous = *place;
    job.rendezvous_source = kEnvRendezvous;
  }
  job.epoch = env_integer(kEnvEpoch, 0, kMostEpoch).value_or(job.epoch);
  return job;
}

std::string command_line_of(pid_t process) {
  std::ifstream file(concat("/proc/", process, "/cmdline"), std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// MPICH's mpiexec (hydra) starts one proxy on each machine, whose children the ranks are. It gives
// the ranks no name of the job; PMI_PORT, where it is set at all, is the proxy's. But every proxy
// has been told where mpiexec listens, which no other mpiexec does at the same time.
void name_mpich_job(JobEnvironment& job) {
  if (const auto id = env_string("PMI_JOBID")) {
    job.job = concat("mpich ", *id);
    return;
  }
  const pid_t parent = getppid();
  if (const std::string place = hydra_control_place(command_line_of(parent)); !place.empty()) {
    job.job = concat("mpich at ", place);
    return;
  }
  job.job = concat("mpich ", value("PMI_PORT"), " ", parent);
  job.job_is_local = true;
}

// srun says on which machine a task is, and how many tasks each machine has.
void place_in_slurm(JobEnvironment& job) {
  if (env_integer("SLURM_NNODES", 1, kMaxRanks).value_or(1) == 1) {
    return;
  }
  const auto node = static_cast<int>(env_integer("SLURM_NODEID", 0, kMaxRanks).value_or(0));
  const char* name = env_string("SLURM_STEP_TASKS_PER_NODE") ? "SLURM_STEP_TASKS_PER_NODE"
                                                             : "SLURM_TASKS_PER_NODE";
  const auto tasks = slurm_tasks_of(value(name), node);
  TRIREME_CHECK(tasks && job.local_rank < *tasks,
                "{}=\"{}\" does not say how many tasks machine {} has: expected a list of Slurm's "
                "like 2(x3),1 with more than {} there",
                {name, value(name), node, job.local_rank});
  job.local_size = *tasks;
  const std::string host =
      first_slurm_host(env_string("SLURM_STEP_NODELIST").value_or(value("SLURM_JOB_NODELIST")));
  constexpr std::int64_t kFirstPort = 20000;
  constexpr std::int64_t kPorts = 12000;  // below those that the system hands out
  const auto id = parse_integer(value("SLURM_JOB_ID")).value_or(0);
  if (!host.empty()) {
    job.rendezvous = concat(host, ":", kFirstPort + id % kPorts);
    job.rendezvous_source = "SLURM_STEP_NODELIST and SLURM_JOB_ID";
  }
}

}  // namespace

std::string hydra_control_place(const std::string& command_line) {
  std::vector<std::string> words;
  std::istringstream rest(command_line);
  for (std::string word; std::getline(rest, word, '\0');) {
    words.push_back(word);
  }
  if (words.empty() ||
      words[0].substr(words[0].rfind('/') + 1).find("hydra") == std::string::npos) {
    return "";
  }
  std::string place;
  std::string group;  // processes that a job has spawned are a world of their own
  for (std::size_t i = 1; i + 1 < words.size(); ++i) {
    if (words[i] == "--control-port") {
      place = words[i + 1];
    } else if (words[i] == "--pgid") {
      group = words[i + 1];
    }
  }
  return place.empty() ? "" : place + " " + group;
}

std::string first_slurm_host(const std::string& list) {
  const auto end = list.find_first_of(",[");
  if (end == std::string::npos || list[end] == ',') {
    return list.substr(0, end);
  }
  const auto number_end = list.find_first_of("-,]", end + 1);
  if (number_end == std::string::npos) {
    return "";
  }
  const auto close = list.find(']', end);
  const auto next = close == std::string::npos ? close : list.find_first_of(",[", close + 1);
  const std::string suffix =
      close == std::string::npos
          ? ""
          : list.substr(close + 1, next == std::string::npos ? next : next - close - 1);
  return list.substr(0, end) + list.substr(end + 1, number_end - end - 1) + suffix;
}

std::optional<int> slurm_tasks_of(const std::string& list, int node) {
  std::istringstream parts(list);
  int first = 0;
  for (std::string part; std::getline(parts, part, ',');) {
    const auto open = part.find("(x");
    const auto tasks = parse_integer(part.substr(0, open));
    std::optional<std::int64_t> times = 1;
    if (open != std::string::npos && part.back() == ')') {
      times = parse_integer(part.substr(open + 2, part.size() - open - 3));
    }
    if (!tasks || !times || *tasks < 1 || *times < 1 || *times > kMaxRanks) {
      return std::nullopt;
    }
    if (node < first + *times) {
      return static_cast<int>(*tasks);
    }
    first += static_cast<int>(*times);
  }
  return std::nullopt;
}

JobEnvironment read_job_environment() {
  if (env_string(kTrireme.rank)) {
    JobEnvironment job = read(kTrireme);
    job.job = value(kEnvJob);
    job.epoch = env_integer(kEnvEpoch, 0, kMostEpoch).value_or(0);
    job.rendezvous = value(kEnvRendezvous);
    job.rendezvous_source = kEnvRendezvous;
    return job;
  }
  if (env_string(kTorchrun.rank) && env_string(kTorchrun.size)) {
    JobEnvironment job = read(kTorchrun);
    job.job = concat("torchrun {} {} {}",
                     {value("MASTER_ADDR"), value("MASTER_PORT"), value("TORCHELASTIC_RUN_ID")});
    // Each machine's agent counts the failures of its own ranks: one agent's count is everyone's.
    if (job.local_size == job.size) {
      job.epoch = env_integer("TORCHELASTIC_RESTART_COUNT", 0, kMostEpoch).value_or(0);
    }
    // torchrun itself has MASTER_PORT.
    if (const auto port = env_integer("MASTER_PORT", 1, 65534)) {
      job.rendezvous = concat(value("MASTER_ADDR"), ":", *port + 1);
      job.rendezvous_source = "MASTER_ADDR and MASTER_PORT + 1";
    }
    return with_what_the_user_says(job);
  }
  if (env_string(kOpenMpi.rank)) {
    JobEnvironment job = read(kOpenMpi);
    job.job = concat("openmpi {} {} {}",
                     {value("PMIX_NAMESPACE"),
                      value("OMPI_MCA_ess_base_jobid"),
                      value("OMPI_MCA_orte_hnp_uri")});
    return with_what_the_user_says(job);
  }
  if (in_slurm_step()) {
    JobEnvironment job = read(kSlurm);
    place_in_slurm(job);
    job.job = concat("slurm ", value("SLURM_JOB_ID"), " ", value("SLURM_STEP_ID"));
    job.epoch = env_integer("SLURM_RESTART_COUNT", 0, kMostEpoch).value_or(0);
    return with_what_the_user_says(job);
  }
  if (env_string(kMpich.rank)) {
    JobEnvironment job = read(kMpich);
    name_mpich_job(job);
    return with_what_the_user_says(job);
  }
  return {};
}

}  // namespace trireme::detail

namespace trireme {
namespace {

const std::vector<std::string>& backends() {
  static const std::vector<std::string> names = {"auto", "shm", "ucx", "mpi"};
  return names;
}

}  // namespace

std::string backend_names() {
  return detail::enumerated(backends(), " or ");
}

void check_backend(const std::string& name, const std::string& where) {
  TRIREME_CHECK(std::find(backends().begin(), backends().end(), name) != backends().end(),
                "{}: expected {}, found \"{}\"",
                {where, backend_names(), detail::printable(name)});
}

std::optional<ForeignRank> foreign_rank() {
  if (env_string(kEnvRank)) {
    return std::nullopt;
  }
  const detail::JobEnvironment job = detail::read_job_environment();
  if (job.size == 1) {
    return std::nullopt;
  }
  return ForeignRank{job.launcher, job.rank, job.size, job.local_size == job.size};
}

}  // namespace trireme
