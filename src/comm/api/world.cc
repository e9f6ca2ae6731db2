#include "trireme/comm/world.h"

#include <algorithm>
#include <functional>
#include <sstream>

#include <unistd.h>

#include "comm/api/cluster_world.h"
#include "comm/api/communicator_builder.h"
#include "comm/api/job_environment.h"
#include "comm/api/ordinary_memory.h"
#include "comm/queue/failure_report.h"
#include "comm/queue/flight_folder.h"
#include "comm/rendezvous/build_id.h"
#include "comm/rendezvous/membership_socket.h"
#include "comm/rendezvous/secrets.h"
#include "trireme/comm/launch_protocol.h"
#include "trireme/core/deadline.h"
#include "trireme/core/drill.h"
#include "trireme/core/environment.h"
#include "trireme/core/error.h"
#include "trireme/core/log.h"
#include "trireme/core/pulse.h"

namespace trireme {
namespace {

using detail::concat;
using detail::JobEnvironment;

JobEnvironment place_of_this_process(const InitOptions& options) {
  TRIREME_CHECK(options.rank.has_value() == options.size.has_value(),
                "InitOptions: give both rank and size, or neither");
  TRIREME_CHECK(options.local_rank.has_value() == options.local_size.has_value() &&
                    (options.rank || !options.local_rank),
                "InitOptions: give both local_rank and local_size, with rank and size, or neither");
  if (!options.rank) {
    return detail::read_job_environment();
  }
  TRIREME_CHECK(*options.size >= 1,
                "InitOptions: a world needs at least one rank, found size ",
                *options.size);
  TRIREME_CHECK(*options.rank >= 0 && *options.rank < *options.size,
                "InitOptions: rank {} is outside the world of {} ranks: use 0 to {}",
                {*options.rank, *options.size, *options.size - 1});
  JobEnvironment place;
  place.launcher = "init options";
  place.rank = *options.rank;
  place.size = *options.size;
  place.local_rank = options.local_rank.value_or(place.rank);
  place.local_size = options.local_size.value_or(place.size);
  TRIREME_CHECK(place.local_rank >= 0 && place.local_rank < place.local_size &&
                    place.local_size <= place.size,
                "InitOptions: local rank {} of {} in a world of {} is impossible",
                {place.local_rank, place.local_size, place.size});
  place.job = env_string(kEnvJob).value_or("");
  place.epoch = env_integer(kEnvEpoch, 0, kMostEpoch).value_or(0);
  return place;
}

Milliseconds timeout_of(const InitOptions& options) {
  if (options.timeout.count() > 0) {
    return options.timeout;
  }
  if (const auto seconds = env_seconds(kEnvTimeout)) {
    constexpr double kMost = 1e12;  // what a Deadline takes anyway
    return Milliseconds(static_cast<std::int64_t>(std::clamp(*seconds * 1000, 1.0, kMost)));
  }
  return kDefaultTimeout;
}

std::string program_version_of(const InitOptions& options) {
  if (!options.program_version.empty()) {
    return options.program_version;
  }
  const auto given = env_string(kEnvProgramVersion);
  return given ? *given : detail::executable_build_id();
}

detail::FlightFolder flight_folder_of(const InitOptions& options,
                                      const std::string& job,
                                      std::int64_t epoch) {
  using detail::FlightFolder;
  if (!options.flight_folder.empty()) {
    return FlightFolder::named(options.flight_folder);
  }
  if (const auto folder = env_string(kEnvLogDir)) {
    return FlightFolder::named(*folder);
  }
  const std::string attempt = epoch == 0 ? job : concat(job, " attempt ", epoch);
  return FlightFolder::temporary(detail::hex_digest(attempt).substr(0, 12));
}

std::string option_or_variable(const std::string& option, const char* variable) {
  return option.empty() ? env_string(variable).value_or("auto") : option;
}

std::vector<std::string> interfaces_of(const InitOptions& options) {
  if (!options.interfaces.empty()) {
    return options.interfaces;
  }
  std::vector<std::string> names;
  std::istringstream list(env_string(kEnvInterfaces).value_or(""));
  for (std::string name; std::getline(list, name, ',');) {
    if (!name.empty()) {
      names.push_back(name);
    }
  }
  return names;
}

bool kernel_copy_of(const InitOptions& options) {
  const std::string value = option_or_variable(options.kernel_copy, kEnvKernelCopy);
  TRIREME_CHECK(value == "auto" || value == "off",
                "{}: expected auto or off; found \"{}\"",
                {options.kernel_copy.empty() ? kEnvKernelCopy : "InitOptions::kernel_copy", value});
  return value == "auto";
}

bool switch_of(const std::optional<bool>& option, const char* variable) {
  const std::string value = env_string(variable).value_or("off");
  TRIREME_CHECK(
      value == "on" || value == "off", variable, ": expected on or off; found \"", value, "\"");
  return option.value_or(value == "on");
}

int sum_group_of(const InitOptions& options) {
  constexpr std::int64_t kMost = 1 << 20;
  const std::int64_t group =
      options.sum_group > 0 ? options.sum_group : env_integer(kEnvSumGroup, 1, kMost).value_or(1);
  TRIREME_CHECK(options.sum_group >= 0,
                "InitOptions: sum_group must be a number of ranks, found ",
                options.sum_group);
  return static_cast<int>(group);
}

// Throws where the launcher says that this world has ended, which may take a moment to come.
void look_for_the_end(const std::function<void(Milliseconds)>& look) {
  constexpr Milliseconds kTimeToCome{1000};
  for (const Deadline patience(kTimeToCome); !patience.passed(); usleep(10'000)) {
    look(Milliseconds(0));
  }
}

}  // namespace

std::shared_ptr<World> init(const InitOptions& options) {
  const detail::PulseWait waits;
  const JobEnvironment place = place_of_this_process(options);
  const std::string backend = option_or_variable(options.backend, kEnvBackend);
  check_backend(backend, options.backend.empty() ? kEnvBackend : "InitOptions::backend");
  const bool several = place.local_size != place.size;
  TRIREME_CHECK(!several || backend != "shm",
                "{} started {} ranks, {} of them on this machine: the backend shm is for one "
                "machine; use auto",
                {place.launcher, place.size, place.local_size});
  std::string job = options.job.empty() ? place.job : options.job;
  TRIREME_CHECK(place.size == 1 || !job.empty(),
                "nothing distinguishes this job of ",
                place.size,
                " ranks from others: set TRIREME_JOB to a unique name, or use trireme run");
  if (job.empty()) {
    job = concat("alone ", getpid());
  }
  const std::int64_t epoch = options.epoch.value_or(place.epoch);
  TRIREME_CHECK(epoch >= 0 && epoch <= kMostEpoch,
                "InitOptions::epoch: expected 0 to {}, found {}",
                {kMostEpoch, epoch});
  detail::BuilderOptions builder;
  detail::Identity& identity = builder.machine.meeting.identity;
  identity.job = job;
  identity.epoch = epoch;
  identity.rank = place.rank;
  identity.size = place.size;
  identity.local_rank = place.local_rank;
  identity.local_size = place.local_size;
  // Without a token the ranks of a machine check the user ID alone, those of several machines
  // refuse to meet at a port (docs/mechanisms.md).
  identity.token = options.token.empty() ? env_string(kEnvToken).value_or("") : options.token;
  identity.program_version = program_version_of(options);
  identity.sum_group = builder.machine.sum_group = sum_group_of(options);
  identity.encrypt = switch_of(options.encrypt, kEnvEncrypt);
  identity.checksums = switch_of(options.checksums, kEnvChecksums);
  identity.algorithm = option_or_variable(options.algorithm, kEnvAlgorithm);
  builder.algorithm = detail::algorithm_named(
      identity.algorithm, options.algorithm.empty() ? kEnvAlgorithm : "InitOptions::algorithm");
  if (!keeps_order_of_sums(builder.algorithm) && place.rank == 0) {
    log(LogLevel::kWarning,
        concat("the algorithm \"{}\" sums in an order of its own: the last bits of results differ "
               "from those of other algorithms and numbers of ranks",
               {identity.algorithm}));
  }
  builder.machine.meeting.name = detail::meeting_name(detail::hex_digest(job));
  builder.machine.meeting.timeout = builder.queue.timeout = timeout_of(options);
  // Windows of the stage must hold a vector of each rank.
  constexpr std::size_t kLeastPerRank = 1024;
  constexpr std::size_t kMostStage = std::size_t{1} << 30;
  TRIREME_CHECK(options.stage_bytes <= kMostStage,
                "InitOptions::stage_bytes: expected at most {}, found {}",
                {kMostStage, options.stage_bytes});
  builder.machine.stage_bytes =
      std::max(options.stage_bytes, kLeastPerRank * static_cast<std::size_t>(place.size));
  builder.machine.kernel_copy = kernel_copy_of(options);
  if (const int launcher = detail::membership_socket(); launcher >= 0) {
    builder.queue.lost = [launcher] { return detail::words_of_launcher(launcher).lost; };
    builder.machine.meeting.look = [launcher](Milliseconds) {
      const detail::LauncherWords words = detail::words_of_launcher(launcher);
      if (words.over || words.lost || words.closed) {
        throw CommError(CommError::Reason::kPeerDied,
                        -1,
                        concat("the launcher has ended this world while its ranks met: ",
                               words.lost.value_or("one of them was lost, or others come")));
      }
    };
  }
  builder.queue.flight_folder = flight_folder_of(options, job, epoch);
  if (place.local_rank == 0 && epoch == 0) {
    builder.queue.flight_folder.remove_old();
  }
  builder.queue.helper_thread = options.progress_thread;
  const auto look = builder.machine.meeting.look;
  World::Facts facts;
  facts.local_rank = place.local_rank;
  facts.local_size = place.local_size;
  facts.epoch = epoch;
  facts.launcher = place.launcher;
  const bool over_network = several || (backend != "auto" && backend != "shm");
  if (detail::kDrillIsOn) {
    detail::begin_links(false);  // a network has them
  }
  try {
    if (over_network) {
      detail::ClusterOptions cluster;
      cluster.place = place;
      cluster.backend = backend;
      cluster.interfaces = interfaces_of(options);
      cluster.listener = options.listener;
      if (!options.rendezvous.empty()) {
        cluster.place.rendezvous = options.rendezvous;
        cluster.place.rendezvous_source = "InitOptions::rendezvous";
      } else if (cluster.place.rendezvous.empty()) {
        cluster.place.rendezvous = env_string(kEnvRendezvous).value_or("");
        cluster.place.rendezvous_source = kEnvRendezvous;
      }
      detail::join_cluster(cluster, &builder);
    }
    const auto network = builder.network;
    Communicator::Parts parts =
        std::make_shared<detail::CommunicatorBuilder>(std::move(builder))->make_world(&facts);
    facts.description = detail::description_of(network.get(), facts);
    if (network) {
      facts.machine_rank = network->self().node;
      facts.machines = network->members().back().node + 1;
    }
    return std::make_shared<World>(std::move(parts), std::move(facts));
  } catch (const CommError& error) {
    detail::report_failure(place.rank, error);
    throw;
  } catch (const ConfigError&) {
    // A network cannot connect to a rank that has left because this world has ended.
    if (detail::membership_socket() >= 0) {
      look_for_the_end(look);
    }
    throw;
  }
}

}  // namespace trireme
