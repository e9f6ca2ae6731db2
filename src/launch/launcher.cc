#include "trireme/launch/launcher.h"

#include <algorithm>
#include <limits>
#include <optional>

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include "launch/drill_book.h"
#include "launch/elastic_job.h"
#include "launch/fleet.h"
#include "launch/job_setup.h"
#include "launch/job_socket.h"
#include "launch/launch_checks.h"
#include "launch/local_ranks.h"
#include "launch/signal_watch.h"
#include "launch/stall_watch.h"
#include "launch/verdict.h"
#include "trireme/comm/launch_protocol.h"
#include "trireme/comm/world.h"
#include "trireme/core/deadline.h"
#include "trireme/core/environment.h"
#include "trireme/core/error.h"
#include "trireme/core/printable.h"

namespace trireme {
namespace {

using detail::concat;
using detail::JobEvent;

// After a failure: time for the other ranks to notice it and write their flight records.
constexpr Milliseconds kTimeToNotice{700};
// For a reader of the output that has fallen behind when the ranks have ended.
constexpr Milliseconds kTimeToRead{600'000};
// For other machines to end their ranks, beyond what ending them takes here.
constexpr Milliseconds kTimeForOthers{3000};
// Signals this close together are one request: GNU timeout, for one, signals the program it has
// started and then the whole group, which that program is a part of.
constexpr Milliseconds kOneRequest{1000};
// A turn of the loop at least this often: the fleet's heartbeat needs one.
constexpr std::int64_t kLongestTurn = 500;

Milliseconds to_milliseconds(double seconds) {
  // Ten years: the clock counts nanoseconds in 64 bits.
  return Milliseconds(static_cast<std::int64_t>(std::min(seconds, 3e8) * 1000));
}

// One job as the launcher of this machine sees it: the ranks here, the other machines, the signals.
class Job {
 public:
  // `meeting` is how the machines come together; empty where there is only this one.
  Job(const LaunchOptions& options, std::optional<detail::MeetingOptions> meeting)
      : options_(options), meeting_(std::move(meeting)) {}
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  int run() {
    ranks_.prepare();  // what is wrong on this machine alone is found before the others are met
    try {
      meet_the_others();
    } catch (const detail::MeetingFailed& failure) {
      complain(failure.what());
      finish_output();
      return failure.code();
    }
    begin_drill();
    start_ranks();
    open_job_socket();
    while (!is_over()) {
      wait_for_events();
      end_after_failure();
      if (fleet_ && fleet_->lease_is_over() && !ending_) {
        if (const int code = come_back(); code != kExitOk) {
          return code;
        }
      }
    }
    if (fleet_) {
      fleet_->farewell();
    }
    const int code = detail::say_verdict({events(),
                                          ranks_.world_size(),
                                          fleet_ ? &*fleet_ : nullptr,
                                          options_.rank0_speaks ? ranks_.rank0() : nullptr,
                                          options_.rank0_speaks},
                                         [this](const std::string& text) { complain(text); });
    if (drill_) {
      drill_->finish(code);
    }
    finish_output();
    return code;
  }

 private:
  // --- beginning

  // A port that is free now. Nobody holds it: the program that wants it opens it itself.
  void find_master_port() {
    const detail::MeetingPlace here{"127.0.0.1", 0};
    try {
      identity_.master_port = detail::port_of(detail::listen_at(detail::resolve(here), here));
      identity_.master_host = here.host;
    } catch (const Error&) {
      identity_.master_port = 0;  // only programs of torchrun's would have wanted it
    }
  }

  void meet_the_others() {
    if (!meeting_) {
      find_master_port();
      identity_.job = detail::random_job_name();
      identity_.token = detail::random_token();
      identity_.world_size = identity_.local_size = options_.ranks;
      if (elastic_) {
        elastic_->begin(nullptr, nullptr, Milliseconds(0));
      }
      if (options_.backend == "ucx" ||
          (options_.backend.empty() && env_string(kEnvBackend) == "ucx")) {
        // Ranks of one machine that go over the network all the same meet there, too.
        const detail::MeetingPlace here{"127.0.0.1", 0};
        rank0_listener_ = detail::listen_at(detail::resolve(here), here);
        identity_.rendezvous =
            detail::MeetingPlace{here.host, detail::port_of(rank0_listener_)}.text();
      }
      return;
    }
    meeting_->signals = &signals_;
    meeting_->say = [this](const std::string& text) {
      complain(text);
      errors_.flush();
    };
    if (elastic_ && meeting_->machine != 0 && meeting_->listener_port == 0) {
      // Should all machines before this one be lost, rank 0 will be here.
      const bool old = meeting_->addresses.front().storage.ss_family == AF_INET;
      const detail::MeetingPlace anywhere{old ? "0.0.0.0" : "::", 0};
      rank0_listener_ = detail::listen_at(detail::resolve(anywhere), anywhere);
      meeting_->listener_port = detail::port_of(rank0_listener_);
    }
    detail::Roster roster = detail::meet_launchers(*meeting_);
    identity_.job = roster.job;
    identity_.token = roster.token;
    identity_.first_rank = roster.first_rank();
    identity_.world_size = roster.world_size();
    identity_.local_size = roster.joins ? 0 : options_.ranks;
    identity_.rendezvous = roster.rendezvous;
    if (roster.rank0_listener.valid()) {
      rank0_listener_ = std::move(roster.rank0_listener);
    }
    const detail::MeetingPlace rank0 = detail::parse_meeting_place(roster.rendezvous);
    identity_.master_host = rank0.host;
    identity_.master_port = rank0.port + 1;  // as torchrun's MASTER_PORT + 1 is ours
    auto reception = std::move(roster.reception);
    fleet_.emplace(
        std::move(roster), meeting_->timeout, kTimeToNotice + 2 * time_to_end() + kTimeForOthers);
    if (elastic_) {
      try {
        elastic_->begin(&*fleet_, std::move(reception), meeting_->timeout);
      } catch (const ConfigError& error) {
        fleet_->tell(trouble(error.what()));
        fleet_->farewell();
        throw;
      }
    }
  }

  // The others go on without this machine, or end: its ranks, of which nobody else can say whether
  // they still run, end here and now (Note [leases] in fleet.cc).
  int come_back() {
    complain(concat("machine 0 has not been heard from for {} s, so that the others may go on "
                    "without this machine: its ranks are ended; trying to join them again",
                    {options_.elastic->heartbeat_seconds}));
    errors_.flush();
    ranks_.end_all();
    fleet_.reset();
    try {
      meet_the_others();
    } catch (const detail::MeetingFailed& failure) {
      complain(failure.what());
      finish_output();
      return failure.code();
    }
    ranks_.start(identity_, std::move(rank0_listener_));
    return kExitOk;
  }

  void begin_drill() {
    if (!options_.drill) {
      return;
    }
    const auto scale = [this](int more) {
      const auto now = std::count_if(
          ranks_.ranks().begin(), ranks_.ranks().end(), [](const detail::RankProcess& rank) {
            return rank.is_member();
          });
      return ending_ ? "no: the job is ending" : elastic_->scale(static_cast<int>(now) + more);
    };
    drill_.emplace(*options_.drill, scale, [this](const std::string& text) { complain(text); });
    ranks_.share(detail::kEnvDrill, drill_->descriptor());
  }

  void start_ranks() {
    try {
      ranks_.start(identity_, std::move(rank0_listener_));
    } catch (const std::exception& error) {
      if (fleet_) {
        fleet_->tell(trouble(concat("could not start its ranks: ", error.what())));
        fleet_->farewell();
      }
      throw;
    }
  }

  // --- running

  // All ranks have ended, here and elsewhere.
  bool is_over() {
    if (!ranks_.all_ended() || (elastic_ && elastic_->is_forming() && !ending_)) {
      swept_ = false;  // of an elastic job: they may have been started again
      return false;
    }
    if (elastic_ && elastic_->leaves()) {
      return true;
    }
    if (!swept_) {
      swept_ = true;
      ranks_.end_left_behind();
      if (fleet_) {
        fleet_->done();
      }
    }
    return !fleet_ || fleet_->is_over();
  }

  void wait_for_events() {
    std::vector<pollfd> entries{{signals_.fd(), POLLIN, 0},
                                {output_.empty() ? -1 : output_.fd(), POLLOUT, 0},
                                {errors_.empty() ? -1 : errors_.fd(), POLLOUT, 0}};
    entries.push_back({job_socket_ ? job_socket_->fd() : -1, POLLIN, 0});
    ranks_.add_to(entries);
    if (elastic_) {
      elastic_->add_to(entries);
    }
    if (fleet_) {
      fleet_->add_to(entries);
    }
    const std::int64_t longest = drill_               ? detail::DrillBook::kTurnMilliseconds
                                 : elastic_ && fleet_ ? fleet_->beat_period().count()
                                                      : kLongestTurn;
    const std::int64_t limit = ending_ ? ending_->left().count() : longest;
    poll(entries.data(),
         entries.size(),
         static_cast<int>(std::clamp<std::int64_t>(limit, 10, longest)));
    ranks_.take_output(entries);
    flush_output();
    while (const int number = signals_.next()) {
      take_signal(number);
    }
    hear_others();
    const std::vector<JobEvent> failures = ranks_.reap();
    if (drill_) {
      drill_->turn(ranks_.ranks(), failures);
    }
    take_failures(failures);
    if (options_.elastic || ranks_.world_size() > 1) {  // else nobody waits
      stalls_.look(ranks_.ranks(), ranks_.world_size(), output_.full() || errors_.full());
    }
    if (job_socket_) {
      job_socket_->turn();
    }
  }

  void open_job_socket() {
    if (!elastic_ || options_.node_rank != 0 ||
        elastic_->options().least == elastic_->options().most) {
      return;
    }
    try {
      job_socket_.emplace([this](const std::string& request) { return answer(request); });
      complain(
          concat("elastic job {}: trireme scale {} N changes its number of ranks, {} to {}",
                 {getpid(), getpid(), elastic_->options().least, elastic_->options().most}));
    } catch (const ConfigError& error) {
      complain(concat("trireme scale will not find this job: ", error.what()));
    }
  }

  std::string answer(const std::string& request) {
    const std::string word = "scale ";
    const auto ranks =
        request.starts_with(word) ? parse_integer(request.substr(word.size())) : std::nullopt;
    if (!ranks || *ranks < 0 || *ranks > std::numeric_limits<int>::max()) {
      return concat("no: expected \"scale N\", found \"", detail::printable(request), "\"");
    }
    return ending_ ? "no: the job is ending" : elastic_->scale(static_cast<int>(*ranks));
  }

  void take_failures(const std::vector<JobEvent>& failures) {
    const auto known = events();
    const bool only_stopped = std::all_of(known.begin(), known.end(), [](const JobEvent& event) {
      return event.kind == JobEvent::Kind::kStopped;
    });
    if (elastic_ && only_stopped && (failures.empty() || elastic_->take_failures(failures))) {
      for (const JobEvent& end : elastic_->turn()) {
        take_note(end);
      }
      return;
    }
    if (elastic_) {
      ranks_.close_memberships();  // there will be no other epoch
    }
    for (const JobEvent& failure : failures) {
      take_note(failure);
    }
  }

  void hear_others() {
    if (!fleet_) {
      return;
    }
    fleet_->turn();
    for (const std::string& remark : fleet_->take_remarks()) {
      complain(remark);
    }
    if (const int number = fleet_->stopped_by(); number != 0 && !asked_to_end_) {
      begin_ending(number);  // as on the machine that was stopped, at the same time
    }
  }

  void take_signal(int number) {
    if (detail::SignalWatch::asks_to_end(number)) {
      if (!request_ && elastic_ && options_.node_rank != 0) {
        request_.emplace(kOneRequest);
        elastic_->leave();
        leaving_.emplace(to_milliseconds(options_.elastic->grace_seconds));
        return;
      }
      if (!request_) {
        request_.emplace(kOneRequest);
        JobEvent event;
        event.kind = JobEvent::Kind::kStopped;
        event.number = number;
        take_note(event);
      } else if (request_->passed()) {
        ranks_.send_signal(SIGKILL);  // asked twice
        if (fleet_) {
          fleet_->give_up_waiting();
        }
      } else {
        return;
      }
      begin_ending(number);
    } else if (detail::SignalWatch::is_passed_on(number)) {
      ranks_.send_signal(number);
    } else if (number == SIGTSTP) {
      ranks_.send_signal(SIGTSTP);
      raise(SIGSTOP);
      ranks_.send_signal(SIGCONT);
    }
  }

  // --- ending

  // Something that ends the job has happened on this machine.
  void take_note(const JobEvent& event) {
    if (event.kind != JobEvent::Kind::kStopped) {
      ranks_.close_memberships();
    } else if (elastic_) {
      elastic_->end_in_good_order();  // where ranks are just meeting anew, they do that first
    }
    if (fleet_ && event.machine != options_.node_rank && options_.node_rank == 0) {
      fleet_->record_of(event.machine, event);
    } else if (fleet_) {
      fleet_->tell(event);
    } else {
      own_events_.push_back(event);
    }
  }

  static JobEvent trouble(const std::string& text) {
    JobEvent event;
    event.kind = JobEvent::Kind::kTrouble;
    event.text = text;
    return event;
  }

  std::vector<JobEvent> events() const { return fleet_ ? fleet_->events() : own_events_; }

  void begin_ending(int number) {
    ranks_.tell_to_end(number);
    ending_.emplace(time_to_end());
    asked_to_end_ = true;
  }

  // Moves on from a failure: time to notice, SIGTERM, SIGKILL.
  void end_after_failure() {
    if (leaving_ && leaving_->passed() && !ranks_.all_ended()) {
      complain("the ranks here have not left in time (--grace): ending them");
      ranks_.send_signal(SIGKILL);
      leaving_.emplace(kTimeForOthers);
    }
    const bool is_ending = fleet_ ? fleet_->is_ending() : !own_events_.empty();
    if (is_ending && !ending_) {
      ending_.emplace(kTimeToNotice);
    }
    if (!ending_ || !ending_->passed() || ranks_.all_ended()) {
      return;
    }
    if (!asked_to_end_) {
      name_first_failure();
      begin_ending(SIGTERM);
    } else {
      ranks_.send_signal(SIGKILL);
      ending_.emplace(time_to_end());
    }
  }

  // The verdict comes when all have ended. Where that takes long (a rank that computes something
  // else does not notice), a rank that has died must not be a secret until then.
  void name_first_failure() {
    for (const JobEvent& event : events()) {
      if (event.kind == JobEvent::Kind::kRankFailed && time_to_end() > kTimeForOthers) {
        complain(concat("rank {} of {} (pid {}) {}: waiting up to {} s for the other ranks to end",
                        {event.rank,
                         ranks_.world_size(),
                         event.pid,
                         detail::how_it_ended(event.number),
                         options_.end_seconds}));
        return;
      }
    }
  }

  Milliseconds time_to_end() const { return to_milliseconds(options_.end_seconds); }

  // --- speaking

  void complain(const std::string& message) { errors_.push(concat("trireme: ", message, "\n")); }

  void flush_output() {
    output_.flush();
    errors_.flush();
    if (!(output_.lost() || errors_.lost()) || output_lost_) {
      return;
    }
    output_lost_ = true;
    // A rank that speaks for the job sees itself that nobody listens, and goes on: unless what it
    // says comes through here, as that of any rank of an elastic job.
    if (options_.rank0_speaks && options_.elastic) {
      complain(concat("standard output can no longer be written: the job goes on; see ",
                      options_.log_dir));
    } else if (!options_.rank0_speaks) {  // as with any program whose reader goes away
      take_note(trouble("cannot write its output: nobody reads it any more"));
      begin_ending(SIGTERM);
    }
  }

  // At the end: what is still to be written, unless the reader does not read.
  void finish_output() {
    const Deadline patience(ending_ ? kTimeToNotice : kTimeToRead);
    while ((!output_.empty() || !errors_.empty()) && !patience.passed()) {
      pollfd entries[] = {{output_.empty() ? -1 : output_.fd(), POLLOUT, 0},
                          {errors_.empty() ? -1 : errors_.fd(), POLLOUT, 0},
                          {signals_.fd(), POLLIN, 0}};
      poll(entries, std::size(entries), 100);
      output_.flush();
      errors_.flush();
      if (detail::SignalWatch::asks_to_end(signals_.next())) {
        return;
      }
    }
  }

  const LaunchOptions& options_;
  std::optional<detail::MeetingOptions> meeting_;
  detail::SignalWatch signals_;
  detail::OutputQueue output_{STDOUT_FILENO};
  detail::OutputQueue errors_{STDERR_FILENO};
  detail::JobIdentity identity_;
  FileDescriptor rank0_listener_;       // until rank 0 has it
  std::optional<detail::Fleet> fleet_;  // where there are other machines
  detail::LocalRanks ranks_{
      options_, {&output_, &errors_, [this](const std::string& text) { complain(text); }}};
  std::optional<detail::ElasticJob> elastic_ =
      options_.elastic
          ? std::make_optional<detail::ElasticJob>(
                options_, ranks_, [this](const std::string& text) { complain(text); })
          : std::nullopt;
  std::optional<detail::DrillBook> drill_;
  detail::StallWatch stalls_{options_.stall_seconds,
                             options_.elastic.has_value(),
                             [this](const std::string& text) { complain(text); }};
  std::optional<detail::JobSocket> job_socket_;  // where the number of ranks may change
  std::vector<JobEvent> own_events_;             // where there are no other machines
  std::optional<Deadline> ending_;
  std::optional<Deadline> request_;  // to end, by a signal: until when another one is part of it
  std::optional<Deadline> leaving_;  // an elastic job that goes on elsewhere
  bool asked_to_end_ = false;
  bool swept_ = false;
  bool output_lost_ = false;
};

// Asks the name server, which may block: before the signals are taken over.
std::optional<detail::MeetingOptions> meeting_of(const LaunchOptions& options) {
  if (options.nodes == 1) {
    return std::nullopt;
  }
  detail::MeetingOptions meeting;
  meeting.machine = options.node_rank;
  meeting.machines = options.nodes;
  meeting.ranks = options.ranks;
  meeting.elastic = options.elastic.has_value();
  meeting.epoch = env_integer(kEnvEpoch, 0, kMostEpoch).value_or(0);
  meeting.place = detail::parse_meeting_place(options.rendezvous);
  meeting.secret = detail::read_secret(options.token_file);
  const auto seconds = options.timeout_seconds ? options.timeout_seconds : env_seconds(kEnvTimeout);
  meeting.timeout = seconds ? to_milliseconds(*seconds) : kDefaultTimeout;
  meeting.addresses = detail::resolve(meeting.place);
  return meeting;
}

}  // namespace

int launch(const LaunchOptions& options) {
  detail::check_options(options);
  return Job(options, meeting_of(options)).run();
}

}  // namespace trireme
