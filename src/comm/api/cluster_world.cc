#include "comm/api/cluster_world.h"

#include <algorithm>
#include <optional>

#include "comm/api/ordinary_memory.h"
#include "comm/net/drilled_transport.h"
#include "comm/net/sealed_transport.h"
#include "comm/rendezvous/net_meeting.h"
#include "comm/rendezvous/packing.h"
#include "comm/transport/transport_module.h"
#include "trireme/comm/launch_protocol.h"
#include "trireme/core/drill.h"
#include "trireme/core/environment.h"
#include "trireme/core/error.h"
#include "trireme/core/index.h"
#include "trireme/core/log.h"
#include "trireme/core/machine.h"
#include "trireme/core/printable.h"

namespace trireme::detail {
namespace {

// mpirun's ranks that nothing says a meeting point for can still meet through MPI itself.
bool uses_mpi(const ClusterOptions& options) {
  if (options.backend == "mpi") {
    return true;
  }
  const bool by_mpirun = options.place.launcher.starts_with("mpi");
  return options.backend == "auto" && by_mpirun && options.place.rendezvous.empty();
}

// The line that gives every rank of a launcher's job one token.
std::string how_to_give_a_token(const std::string& launcher) {
  constexpr char kMake[] = "export TRIREME_TOKEN=$(openssl rand -hex 16)";
  if (launcher == "srun") {
    return concat(
        "add the line \"", kMake, "\" before srun (in the batch script), which passes it on");
  }
  if (launcher.starts_with("mpirun")) {
    return concat("on the launching machine, run \"",
                  kMake,
                  "\" first, and then start with \"mpirun -x TRIREME_TOKEN\"");
  }
  if (launcher.starts_with("mpiexec")) {
    return concat(
        "on the launching machine, run \"", kMake, "\" before mpiexec, which passes it on");
  }
  if (launcher == "torchrun") {
    return concat(
        "run \"", kMake, "\" once, and export the same value on every machine before torchrun");
  }
  return concat("run \"", kMake, "\" once, and give every rank the same value");
}

// Rank 0 listens at a port that others than the ranks reach.
void check_token(const ClusterOptions& options, const std::string& token) {
  TRIREME_CHECK(!token.empty() || options.place.size == 1,
                "expected a token that the ranks of the {} job share, since they meet at {} ({}), "
                "found TRIREME_TOKEN empty: anyone who can reach that port could join; {}; "
                "TRIREME_TOKEN=none does without, on a network where you trust everyone",
                {options.place.launcher,
                 options.place.rendezvous,
                 options.place.rendezvous_source,
                 how_to_give_a_token(options.place.launcher)});
  if (token == kNoToken && options.place.rank == 0 && options.place.size > 1) {
    log(LogLevel::kWarning,
        concat("TRIREME_TOKEN=none: anyone who can reach {} can join this job",
               {options.place.rendezvous}));
  }
}

NetMeetingOptions meeting_of(const ClusterOptions& options, const MachineMeetingOptions& machine) {
  const Identity& identity = machine.identity;
  NetMeetingOptions meeting;
  meeting.identity = identity;
  meeting.place = options.place.rendezvous;
  meeting.where = options.place.rendezvous_source;
  meeting.timeout = machine.timeout;
  meeting.look = machine.look;
  if (options.place.rank == 0) {
    meeting.listener =
        options.listener >= 0
            ? options.listener
            : static_cast<int>(env_integer(kEnvRendezvousFd, 0, 1 << 20).value_or(-1));
  }
  TRIREME_CHECK(!meeting.place.empty() || options.place.size == 1,
                "nothing says where the ranks of the ",
                options.place.launcher,
                " job can meet: set TRIREME_RENDEZVOUS=HOST:PORT, an address of rank 0's machine "
                "and a free port on it, or use trireme run --rendezvous HOST:PORT");
  TRIREME_CHECK(!options.place.job_is_local || identity.job != options.place.job ||
                    options.place.local_size == options.place.size,
                "nothing names this job of {} on all its machines: expected PMI_JOBID, or a proxy "
                "of MPICH above rank {}, found neither; give it a name yourself, the same on all "
                "machines and different from other jobs: mpiexec -genv TRIREME_JOB my-job-1 ...",
                {options.place.launcher, options.place.rank});
  check_token(options, identity.token);
  return meeting;
}

// More ranks under this kernel than processors that they may run on, all together: waiting must
// give the processor away at once. (Machines that are network namespaces of one host share its
// processors.)
bool more_than_processors(std::vector<Member> members, const std::string& kernel) {
  std::erase_if(members, [&](const Member& member) { return member.kernel != kernel; });
  return static_cast<int>(members.size()) > std::max(1, processors_of(members));
}

// Some machines are network namespaces of one host: it would be wrong to go around the network.
bool has_namespaces(const std::vector<Member>& members) {
  return std::any_of(members.begin(), members.end(), [&](const Member& member) {
    return member.kernel == members.front().kernel && member.network != members.front().network;
  });
}

// A word to and from every rank: connections are made now, where one that cannot be is named, and
// not in the middle of the first operation. Whoever cannot reach one still answers the others.
std::optional<CommError> greet_everyone(Transport& transport,
                                        const std::vector<Member>& members,
                                        const NetMeeting& meeting,
                                        const std::string& hint) {
  constexpr std::uint32_t kTag = Transport::kTags - 1;
  const auto size = members.size();
  const std::byte mine{};
  std::vector<std::byte> theirs(size);
  std::vector<Request> receives(size);
  std::vector<Request> sends(size);
  constexpr auto kShort = Transport::Length::kUpTo;
  for (const Member& member : members) {
    if (member.rank != transport.rank()) {
      const std::size_t at = index(member.rank);
      receives[at] = transport.receive(member.rank, kTag, &theirs[at], 1, kShort);
      sends[at] = transport.send(member.rank, kTag, &mine, 1, kShort);
    }
  }
  std::optional<CommError> failure;
  for (const Member& member : members) {
    const std::size_t at = index(member.rank);
    bool is_given_up = false;
    while (!is_given_up && !(transport.finished(receives[at]) && transport.finished(sends[at]))) {
      try {
        meeting.look();
      } catch (...) {
        transport.abandon();
        throw;
      }
      if (!transport.progress()) {
        transport.rest(Milliseconds(5));
      }
      const auto why = transport.lost(member.rank);
      is_given_up = why || meeting.deadline().passed();
      if (is_given_up && !failure) {
        failure.emplace(
            CommError::Reason::kRendezvousTimeout,
            member.rank,
            concat("rank {} on {} cannot reach rank {} on {} through {} ({}), although both "
                   "reached the rendezvous: check that {}",
                   {transport.rank(),
                    members[index(transport.rank())].host,
                    member.rank,
                    member.host,
                    transport.description(),
                    why.value_or("no answer"),
                    hint}));
      }
    }
  }
  if (failure) {
    transport.abandon();
  }
  return failure;
}

// Nobody begins, or ends, before everyone has been reached; all name the first that was not.
void agree_that_all_are_reached(NetMeeting& meeting, const std::optional<CommError>& failure) {
  const std::string mine =
      failure ? Packer().number(failure->peer()).text(failure->what()).take() : "";
  for (const std::string& theirs : meeting.exchange(mine)) {
    if (!theirs.empty()) {
      Unpacker fields(theirs);
      const int rank = fields.number_in(0, kAny);
      throw CommError(CommError::Reason::kRendezvousTimeout, rank, printable(fields.text(), 2048));
    }
  }
}

}  // namespace

void join_cluster(const ClusterOptions& options, BuilderOptions* builder) {
  const Identity& identity = builder->machine.meeting.identity;
  const Milliseconds timeout = builder->machine.meeting.timeout;
  std::shared_ptr<Transport> transport;
  std::vector<Member> members;
  std::string world;
  SealOptions seals{"", identity.encrypt, identity.checksums};
  if (uses_mpi(options)) {
    transport = load_mpi_transport(options.place.launcher);
    TRIREME_CHECK(
        transport->rank() == options.place.rank && transport->size() == options.place.size,
        "MPI says that this is rank {} of {}, but its launcher's variables say rank {} of {}: the "
        "program must be started by the mpirun of the same MPI",
        {transport->rank(), transport->size(), options.place.rank, options.place.size});
    NetMeetingOptions through;
    through.identity = identity;
    through.timeout = timeout;
    through.transport = transport.get();
    try {
      const NetMeeting meeting(through);
      members = meeting.members();
      world = meeting.world();
      seals.key = meeting.key();
      if (const auto failure = greet_everyone(
              *transport,
              members,
              meeting,
              "MPI connects the two machines (Open MPI: --mca btl_tcp_if_include)")) {
        throw CommError(*failure);
      }
    } catch (...) {
      transport->abandon();  // or the end of the program waits in MPI_Finalize for all ranks
      throw;
    }
    if (!options.interfaces.empty() && options.place.rank == 0) {
      log(LogLevel::kWarning,
          "--interfaces is for UCX: over MPI, mpirun chooses them (Open MPI: --mca "
          "btl_tcp_if_include)");
    }
  } else {
    NetMeeting meeting(meeting_of(options, builder->machine.meeting));
    members = meeting.members();
    world = meeting.world();
    seals.key = meeting.key();
    UcxOptions ucx;
    ucx.rank = options.place.rank;
    ucx.size = options.place.size;
    ucx.interfaces = options.interfaces;
    ucx.only_tcp = has_namespaces(members);
    transport =
        load_ucx_transport(ucx, [&](const std::string& mine) { return meeting.exchange(mine); });
    agree_that_all_are_reached(
        meeting,
        greet_everyone(
            *transport,
            members,
            meeting,
            "the interfaces are on the same network (--interfaces) and that firewalls let "
            "the ranks of both machines through"));
  }
  const bool oversubscribed =
      more_than_processors(members, members[index(options.place.rank)].kernel);
  builder->machine.oversubscribed = oversubscribed;
  builder->machine.meeting.name = meeting_name(world);
  if (oversubscribed) {
    builder->queue.spins = 0;
  }
  if (kDrillIsOn) {
    std::vector<int> machines;
    machines.reserve(members.size());
    for (const Member& member : members) {
      machines.push_back(member.node);
    }
    begin_links(machines.front() != machines.back());
    transport = drill_transport(std::move(transport),
                                std::move(machines),
                                identity.epoch,
                                planned_drill(options.place.size));
  }
  builder->network =
      std::make_shared<Network>(seal_transport(std::move(transport), seals), std::move(members));
}

std::string description_of(const Network* network, const World::Facts& facts) {
  const std::string copies = copies_text(facts.ordinary_memory, facts.local_size);
  if (network == nullptr) {
    return "shared memory" + copies;
  }
  const std::string transport = network->transport()->description();
  const std::vector<Member>& members = network->members();
  const bool shares = members.back().node > 0 &&
                      std::any_of(members.begin(), members.end(), [](const Member& member) {
                        return member.local_size > 1;
                      });
  return shares ? transport + " and shared memory" + copies : transport;
}

}  // namespace trireme::detail
