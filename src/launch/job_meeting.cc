#include "launch/job_meeting.h"

#include <algorithm>
#include <thread>

#include <unistd.h>

#include "launch/job_drill.h"
#include "launch/store_options.h"
#include "trireme/comm/launch_protocol.h"
#include "trireme/comm/world.h"
#include "trireme/core/environment.h"
#include "trireme/core/error.h"

namespace trireme::detail {
namespace {

constexpr Milliseconds kTimeToSayNoLeader{5000};
constexpr Milliseconds kLookPeriod{20};

}  // namespace

JobMeeting::JobMeeting(const LaunchOptions& options) : options_(options) {
  if (options.nodes == 1) {
    return;
  }
  MeetingOptions& meeting = meeting_.emplace();
  meeting.machine = options.node_rank;
  meeting.machines = options.nodes;
  meeting.ranks = options.ranks;
  meeting.encrypt = options.encrypt || env_string(kEnvEncrypt) == "on";
  meeting.drill = JobDrill::text_of(options.drill);
  if (options.elastic) {
    meeting.lease = milliseconds_of(options.elastic->heartbeat_seconds);
  }
  meeting.epoch = env_integer(kEnvEpoch, 0, kMostEpoch).value_or(0);
  meeting.secret = read_secret(options.token_file);
  const auto seconds = options.timeout_seconds ? options.timeout_seconds : env_seconds(kEnvTimeout);
  meeting.timeout = seconds ? milliseconds_of(*seconds) : kDefaultTimeout;
  if (!options.rendezvous.empty()) {
    meeting.place = parse_meeting_place(options.rendezvous);
    meeting.addresses = resolve(meeting.place);
  }
  if (!options.store.place.empty()) {
    leadership_ = make_leadership(options, meeting.timeout);
  }
}

std::optional<Roster> JobMeeting::meet(const SignalWatch& signals,
                                       const std::function<void(const std::string&)>& say) {
  if (!meeting_) {
    stay_alone();
    return std::nullopt;
  }
  meeting_->signals = &signals;
  meeting_->say = say;
  if (leadership_) {
    open_door();
  }
  const bool may_have_rank0 = meeting_->machine != 0 || leadership_;
  if (meeting_->lease.count() > 0 && may_have_rank0 && meeting_->listener_port == 0) {
    // Should all machines before this one be lost, rank 0 will be here.
    const bool old = meeting_->addresses.front().storage.ss_family == AF_INET;
    const MeetingPlace anywhere{old ? "0.0.0.0" : "::", 0};
    listener_ = listen_at(resolve(anywhere), anywhere);
    meeting_->listener_port = port_of(listener_);
  }
  Roster roster = leadership_ ? meet_by_store(say) : meet_launchers(*meeting_);
  identity_.job = roster.job;
  identity_.token = roster.token;
  identity_.first_rank = roster.first_rank();
  identity_.world_size = roster.world_size();
  identity_.local_size = roster.joins ? 0 : options_.ranks;
  identity_.begins = leadership_ ? !roster.has_begun : !roster.joins;
  identity_.rendezvous = roster.rendezvous;
  if (roster.rank0_listener.valid()) {
    listener_ = std::move(roster.rank0_listener);
  }
  const MeetingPlace rank0 = parse_meeting_place(roster.rendezvous);
  identity_.master_host = rank0.host;
  identity_.master_port = rank0.port + 1;  // as torchrun's MASTER_PORT + 1 is ours
  return roster;
}

void JobMeeting::open_door() {
  if (door_.valid()) {
    return;
  }
  own_place_ = meeting_->place;
  if (own_place_.host.empty()) {
    const auto look = [this] {
      if (const int number = take_ending_signal(*meeting_->signals)) {
        throw stopped_by_signal(number);
      }
    };
    own_place_ = {leadership_->own_address(Deadline(meeting_->timeout), look), 0, "--rendezvous"};
    const Leadership::View view = leadership_->view();
    if (own_place_.host.empty() && view.is_lasting) {
      throw ConfigError(concat("--store: ", view.trouble));
    }
    if (own_place_.host.empty()) {
      throw MeetingFailed(
          kExitRendezvousTimedOut,
          concat("--store: {}; tried for {} s. Check that etcd runs there, and that "
                 "this machine can reach it (firewall)",
                 {view.trouble, meeting_->timeout_seconds()}));
    }
  }
  door_ = listen_at(resolve(own_place_), own_place_);
  own_place_.port = port_of(door_);
  meeting_->addresses = resolve(own_place_);
}

// Whom the store names may be gone when this machine comes there: then it asks again.
Roster JobMeeting::meet_by_store(const std::function<void(const std::string&)>& say) {
  leadership_->seek({options_.node_rank, host_name(), own_place_.text(), ""}, identity_.job);
  const Deadline deadline(meeting_->timeout);
  for (;;) {
    const Leadership::View view = wait_for_leader(deadline, say);
    const Leader leader = *view.leader;
    store_ = {view.job->job, view.job->generation, view.job->ranks, door_.get()};
    store_.look = [this, leader, leads = view.leads] {
      const Leadership::View now = leadership_->view();
      if (leads ? LeaseClock::now() >= leadership_->leads_until()
                : now.leader && now.leader->candidacy != leader.candidacy) {
        throw LeaderChanged();
      }
    };
    store_.begin = [this](const std::vector<int>& ranks) {
      if (!leadership_->begin_job(ranks)) {
        throw LeaderChanged();
      }
    };
    meeting_->store = &store_;
    meeting_->leader = leader.machine;
    meeting_->place = view.leads ? own_place_ : parse_meeting_place(leader.place, "--store");
    meeting_->addresses = resolve(meeting_->place);
    try {
      Roster roster = view.leads ? host_launchers(*meeting_) : join_launchers(*meeting_);
      roster.has_begun = !store_.ranks.empty();
      leadership_->rest();
      return roster;
    } catch (const LeaderChanged&) {
      leadership_->seek_on();
    }
  }
}

Leadership::View JobMeeting::wait_for_leader(
    const Deadline& deadline, const std::function<void(const std::string&)>& say) const {
  bool said = false;
  for (;;) {
    Leadership::View view = leadership_->view();
    if (view.leader && view.job && view.refusal.empty()) {
      return view;
    }
    const bool was_in = !identity_.job.empty();
    if (was_in && !view.refusal.empty()) {
      throw MeetingFailed(kExitRankFailed, view.refusal);
    }
    if (!was_in && (!view.refusal.empty() || view.is_lasting)) {
      throw ConfigError(concat("--store: ", view.refusal.empty() ? view.trouble : view.refusal));
    }
    if (const int number = take_ending_signal(*meeting_->signals)) {
      throw stopped_by_signal(number);
    }
    const std::string trouble = view.trouble.empty() ? "no machine leads the job" : view.trouble;
    if (deadline.passed()) {
      throw MeetingFailed(kExitRendezvousTimedOut,
                          concat("--store: {}; tried for {} s. Check that most of etcd's members "
                                 "run, and that this machine can reach them (firewall)",
                                 {trouble, meeting_->timeout_seconds()}));
    }
    if (!said && deadline.elapsed_seconds() * 1000 >= kTimeToSayNoLeader.count()) {
      said = true;
      say(concat("--store: {}; trying for {} s in all", {trouble, meeting_->timeout_seconds()}));
    }
    std::this_thread::sleep_for(kLookPeriod);
  }
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
