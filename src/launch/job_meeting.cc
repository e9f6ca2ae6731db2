#include "launch/job_meeting.h"

#include <algorithm>

#include "trireme/comm/launch_protocol.h"
#include "trireme/comm/world.h"
#include "trireme/core/environment.h"
#include "trireme/core/error.h"

namespace trireme::detail {

JobMeeting::JobMeeting(const LaunchOptions& options) : options_(options) {
  if (options.nodes == 1) {
    return;
  }
  MeetingOptions& meeting = meeting_.emplace();
  meeting.machine = options.node_rank;
  meeting.machines = options.nodes;
  meeting.ranks = options.ranks;
  if (options.elastic) {
    meeting.lease = milliseconds_of(options.elastic->heartbeat_seconds);
  }
  meeting.epoch = env_integer(kEnvEpoch, 0, kMostEpoch).value_or(0);
  meeting.place = parse_meeting_place(options.rendezvous);
  meeting.secret = read_secret(options.token_file);
  const auto seconds = options.timeout_seconds ? options.timeout_seconds : env_seconds(kEnvTimeout);
  meeting.timeout = seconds ? milliseconds_of(*seconds) : kDefaultTimeout;
  meeting.addresses = resolve(meeting.place);
}

std::optional<Roster> JobMeeting::meet(const SignalWatch& signals,
                                       const std::function<void(const std::string&)>& say) {
  if (!meeting_) {
    stay_alone();
    return std::nullopt;
  }
  meeting_->signals = &signals;
  meeting_->say = say;
  if (meeting_->lease.count() > 0 && meeting_->machine != 0 && meeting_->listener_port == 0) {
    // Should all machines before this one be lost, rank 0 will be here.
    const bool old = meeting_->addresses.front().storage.ss_family == AF_INET;
    const MeetingPlace anywhere{old ? "0.0.0.0" : "::", 0};
    listener_ = listen_at(resolve(anywhere), anywhere);
    meeting_->listener_port = port_of(listener_);
  }
  Roster roster = meet_launchers(*meeting_);
  identity_.job = roster.job;
  identity_.token = roster.token;
  identity_.first_rank = roster.first_rank();
  identity_.world_size = roster.world_size();
  identity_.local_size = roster.joins ? 0 : options_.ranks;
  identity_.rendezvous = roster.rendezvous;
  if (roster.rank0_listener.valid()) {
    listener_ = std::move(roster.rank0_listener);
  }
  const MeetingPlace rank0 = parse_meeting_place(roster.rendezvous);
  identity_.master_host = rank0.host;
  identity_.master_port = rank0.port + 1;  // as torchrun's MASTER_PORT + 1 is ours
  return roster;
}

void JobMeeting::stay_alone() {
  find_master_port();
  identity_.job = random_job_name();
  identity_.token = random_token();
  identity_.world_size = identity_.local_size = options_.ranks;
  if (options_.backend == "ucx" || (options_.backend.empty() && env_string(kEnvBackend) == "ucx")) {
    // Ranks of one machine that go over the network all the same meet there, too.
    const MeetingPlace here{"127.0.0.1", 0};
    listener_ = listen_at(resolve(here), here);
    identity_.rendezvous = MeetingPlace{here.host, port_of(listener_)}.text();
  }
}

// A port that is free now. Nobody holds it: the program that wants it opens it itself.
void JobMeeting::find_master_port() {
  const MeetingPlace here{"127.0.0.1", 0};
  try {
    identity_.master_port = port_of(listen_at(resolve(here), here));
    identity_.master_host = here.host;
  } catch (const Error&) {
    identity_.master_port = 0;  // only programs of torchrun's would have wanted it
  }
}

}  // namespace trireme::detail
