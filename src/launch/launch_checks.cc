#include "launch/launch_checks.h"

#include <algorithm>
#include <filesystem>
#include <sstream>

#include <net/if.h>

#include "comm/algo/algorithms.h"
#include "comm/rendezvous/net_socket.h"
#include "launch/job_setup.h"
#include "launch/store_options.h"
#include "trireme/comm/launch_protocol.h"
#include "trireme/core/drill.h"
#include "trireme/core/environment.h"
#include "trireme/core/error.h"
#include "trireme/core/log.h"
#include "trireme/core/machine.h"
#include "trireme/launch/elastic_limits.h"

namespace trireme::detail {
namespace {

constexpr const char* kDeviceFolder = "/sys/class/infiniband";

std::string backend_of(const LaunchOptions& options) {
  return options.backend.empty() ? env_string(kEnvBackend).value_or("auto") : options.backend;
}

// As UCX takes them: a network interface, or a device with a port ("mlx5_0:1").
bool is_interface(const std::string& name) {
  std::error_code error;
  return if_nametoindex(name.c_str()) != 0 ||
         std::filesystem::exists(concat(kDeviceFolder, "/", name.substr(0, name.find(':'))), error);
}

std::string existing_interfaces() {
  std::string names;
  const auto add = [&](const std::string& name) {
    names += concat(names.empty() ? "" : ", ", name);
  };
  if (struct if_nameindex* all = if_nameindex()) {
    for (const struct if_nameindex* each = all; each->if_index != 0; ++each) {
      add(each->if_name);
    }
    if_freenameindex(all);
  }
  std::error_code error;
  for (std::filesystem::directory_iterator it(kDeviceFolder, error), end; !error && it != end;
       it.increment(error)) {
    add(it->path().filename().string());
  }
  return names;
}

// The ranks of several machines use them; one that is missing here would be found after all
// machines have met, on this one alone.
void check_interfaces(const LaunchOptions& options) {
  const bool said = !options.interfaces.empty();
  if (options.nodes == 1 && !said) {
    return;  // what a profile sets is for other jobs
  }
  std::istringstream list(said ? options.interfaces : env_string(kEnvInterfaces).value_or(""));
  for (std::string name; std::getline(list, name, ',');) {
    TRIREME_CHECK(name.empty() || is_interface(name),
                  "{}: expected network interfaces of this machine ({}), found \"{}\"",
                  {said ? "--interfaces" : kEnvInterfaces, existing_interfaces(), name});
  }
}

// "64 MiB", "1.5 GiB", "8192 GiB".
std::string memory_text(std::uint64_t bytes) {
  if (bytes >> 30 == 0) {
    return concat(bytes >> 20, " MiB");
  }
  const std::uint64_t tenths = (bytes % (std::uint64_t{1} << 30)) * 10 >> 30;
  return tenths == 0 ? concat(bytes >> 30, " GiB") : concat(bytes >> 30, ".", tenths, " GiB");
}

void check_elastic(const LaunchOptions& options) {
  const ElasticOptions& elastic = *options.elastic;
  const bool several = options.nodes > 1;
  const bool as_they_start = several && elastic.most == 0;
  TRIREME_CHECK(as_they_start || (elastic.least >= 1 && elastic.least <= elastic.most),
                "--elastic: expected MIN:MAX, numbers of ranks with 1 <= MIN <= MAX, found {}:{}",
                {elastic.least, elastic.most});
  TRIREME_CHECK(elastic.most <= kMostElasticRanks,
                "--elastic: expected at most {} ranks, found {}",
                {kMostElasticRanks, elastic.most});
  TRIREME_CHECK(several || (options.ranks >= elastic.least && options.ranks <= elastic.most),
                "-n: expected {} to {} ranks, as --elastic says, found {}",
                {elastic.least, elastic.most, options.ranks});
  TRIREME_CHECK(
      elastic.restarts >= 0 && elastic.stall_seconds > 0 && elastic.heartbeat_seconds > 0 &&
          elastic.grace_seconds > 0,
      "--restart, --heartbeat, --stall, --grace: expected a number of 0 or more and seconds above "
      "0, found {}, {}, {} and {}",
      {elastic.restarts, elastic.heartbeat_seconds, elastic.stall_seconds, elastic.grace_seconds});
  constexpr double kLongestLease = 30;  // TCP would give up before
  TRIREME_CHECK(!several || elastic.heartbeat_seconds <= kLongestLease,
                "--heartbeat: expected at most {} s for a job over several machines, found {}",
                {kLongestLease, elastic.heartbeat_seconds});
  const std::int64_t sum_group =
      options.sum_group ? *options.sum_group : env_integer(kEnvSumGroup, 1, 1 << 20).value_or(1);
  TRIREME_CHECK(
      sum_group == 1 || elastic.least == elastic.most,
      "--elastic: sums of groups of {} ranks (--sum-group) depend on the number of ranks, "
      "which a loss changes: leave it out, or keep the number (--restart N alone)",
      {sum_group});
  const std::string backend = backend_of(options);
  TRIREME_CHECK(backend == "auto" || backend == (several ? "ucx" : "shm"),
                "--elastic: expected the backend auto or {}{}, found {}",
                {several ? "ucx" : "shm", several ? "" : " on one machine", backend});
}

// With its launcher a machine loses its ranks, or all machines the job.
void check_launchers_fault(const DrillFault& fault, const LaunchOptions& options) {
  if (!is_of_launchers(fault.kind)) {
    return;
  }
  const ElasticOptions& elastic = *options.elastic;
  const std::string name = drill_name(fault.kind);
  TRIREME_CHECK(options.nodes > 1,
                "--drill: {} is a fault of launchers, and the job ends with its only one; expected "
                "--nnodes of 2 or more, found 1: leave it out",
                {name});
  const bool loses_ranks =
      fault.kind == DrillKind::kKillLauncher || fault.seconds >= elastic.heartbeat_seconds;
  TRIREME_CHECK(
      !loses_ranks || elastic.least < elastic.most,
      "--drill: {} takes the ranks of a machine along{}; expected --elastic MIN:MAX with MIN < "
      "MAX, at most what is left without one machine, found {}",
      {name,
       fault.kind == DrillKind::kKillLauncher ? ""
                                              : concat(", as {} s are not less than --heartbeat {}",
                                                       {fault.seconds, elastic.heartbeat_seconds}),
       elastic.most == 0 ? "--restart alone" : concat(elastic.most, " and no other number")});
}

void check_drill(const LaunchOptions& options) {
  const DrillPlan plan = DrillPlan::parse(options.drill->plan, options.drill->seed);
  TRIREME_CHECK(options.elastic,
                "--drill: expected a job that outlives faults, --elastic MIN:MAX or --restart N, "
                "found neither: the first {} would end it",
                {drill_name(plan.faults.front().kind)});
  for (const DrillFault& fault : plan.faults) {
    check_launchers_fault(fault, options);
    TRIREME_CHECK(!is_of_links(fault.kind) || options.nodes > 1,
                  "--drill: {} is a fault of connections between machines, and the ranks of one "
                  "machine have none, they share its memory; expected --nnodes of 2 or more, found "
                  "1: leave it out",
                  {drill_name(fault.kind)});
  }
  const bool finds_all = options.checksums || options.encrypt ||
                         env_string(kEnvChecksums) == "on" || env_string(kEnvEncrypt) == "on";
  TRIREME_CHECK(!plan.has(DrillKind::kCorrupt) || finds_all,
                "--drill: nothing would find a bit that corrupt has flipped in the data, and the "
                "weights would be wrong; expected --checksums or --encrypt, found neither");
  for (const DrillKind kind : {DrillKind::kLeave, DrillKind::kJoin}) {
    TRIREME_CHECK(!plan.has(kind) || options.elastic->least < options.elastic->most,
                  "--drill: {} changes the number of ranks; expected --elastic MIN:MAX with MIN < "
                  "MAX, found {} and no other number",
                  {drill_name(kind), options.elastic->most});
  }
  TRIREME_CHECK(!plan.has(DrillKind::kDiskFull) || options.elastic->restarts > 0,
                "--drill: ranks that cannot save end by themselves, which only a restart outlives; "
                "expected --restart N with disk-full, one for each rank and fault, found none");
}

void check_room(const LaunchOptions& options) {
  const auto ranks = static_cast<std::uint64_t>(std::max(0, options.ranks));
  // All of it, not what is free now: caches, which the kernel drops when it has to, make that
  // number too small, and only what cannot be is refused here.
  const std::uint64_t memory = total_memory_bytes();
  const std::uint64_t room = memory / std::max<std::uint64_t>(1, options.rank_bytes);
  TRIREME_CHECK(
      ranks <= room,
      "-n: {}{} at least {} of memory ({} each), found {} on this machine, limits of control "
      "groups included: {}",
      {ranks,
       ranks == 1 ? " rank needs" : " ranks need",
       memory_text(ranks * options.rank_bytes),
       memory_text(options.rank_bytes),
       memory_text(memory),
       room > 0 ? concat("start at most ", room, " here, or fewer for larger models")
                : "it cannot be run here"});
  std::string limit;
  const std::uint64_t processes = available_processes(&limit);
  TRIREME_CHECK(
      ranks <= processes,
      "-n: {}{} as many processes, found room for {} ({}): start fewer, or raise that limit",
      {ranks, ranks == 1 ? " rank needs" : " ranks need", processes, limit});
}

void check_all(const LaunchOptions& options) {
  TRIREME_CHECK(!options.command.empty(), "no program to run was given");
  TRIREME_CHECK(options.ranks >= 1, "a job needs at least one rank, found ", options.ranks);
  TRIREME_CHECK(!options.threads || *options.threads >= 1,
                "a rank needs at least one thread, found ",
                *options.threads);
  TRIREME_CHECK(options.nodes >= 1, "a job needs at least one machine, found ", options.nodes);
  TRIREME_CHECK(options.node_rank >= 0 && options.node_rank < options.nodes,
                "--node-rank: expected {} (--nnodes), found {}",
                {options.nodes == 1 ? "0, as there is 1 machine"
                                    : concat("0 to {}, as there are {} machines",
                                             {options.nodes - 1, options.nodes}),
                 options.node_rank});
  if (options.nodes == 1 && !options.token_file.empty()) {
    read_secret(options.token_file);  // nobody needs it here, but it was meant to be there
  }
  if (!options.store.place.empty()) {
    parse_store(options.store);
    TRIREME_CHECK(options.nodes > 1 && options.elastic,
                  "--store: expected an elastic job over several machines (--elastic MIN:MAX or "
                  "--restart N, and --nnodes), found {}: leave it out",
                  {options.nodes > 1 ? "one that is not elastic" : "one machine"});
  }
  TRIREME_CHECK(options.nodes == 1 || !options.rendezvous.empty() || !options.store.place.empty(),
                "--nnodes {}: expected --rendezvous HOST:PORT, an address of machine 0 and a free "
                "port there, the same on every machine, found none",
                {options.nodes});
  if (!options.rendezvous.empty()) {
    parse_meeting_place(options.rendezvous);
  }
  if (!options.backend.empty()) {
    check_backend(options.backend, "--backend");
  }
  if (!options.algorithm.empty()) {
    algorithm_named(options.algorithm, "--algorithm");
  } else if (const auto name = env_string(kEnvAlgorithm)) {
    algorithm_named(*name, kEnvAlgorithm);
  }
  TRIREME_CHECK(!options.sum_group || *options.sum_group >= 1,
                "--sum-group: expected a whole number of 1 or more, found ",
                *options.sum_group);
  check_interfaces(options);
  if (options.elastic) {
    check_elastic(options);
  }
  if (options.drill) {
    check_drill(options);
  }
  check_room(options);
}

void warn_of_what_has_no_effect(const LaunchOptions& options) {
  const std::string backend = backend_of(options);
  const bool shares_memory = backend == "auto" || backend == "shm";
  const auto warn_if = [](bool given, const char* flag, const char* why) {
    if (given) {
      log(LogLevel::kWarning, concat(flag, " has no effect: ", why));
    }
  };
  if (options.nodes == 1 && shares_memory) {
    const char* why = "the ranks of one machine communicate through its memory";
    warn_if(!options.interfaces.empty(), "--interfaces", why);
    warn_if(options.encrypt, "--encrypt", why);
    warn_if(options.checksums, "--checksums", why);
  }
  warn_if(options.nodes == 1 && !options.rendezvous.empty(),
          "--rendezvous",
          "there is no other machine to meet (--nnodes)");
  warn_if(options.nodes == 1 && options.elastic &&
              options.elastic->redundancy != ElasticOptions{}.redundancy,
          "--redundancy",
          "there is no second machine to keep the state");
}

}  // namespace

void check_options(const LaunchOptions& options) {
  check_launch(options);
  warn_of_what_has_no_effect(options);
}

}  // namespace trireme::detail

namespace trireme {

void check_launch(const LaunchOptions& options) {
  detail::check_all(options);
}

}  // namespace trireme
