#include "trireme/launch/launcher.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include "launch/elastic_job.h"
#include "launch/end_request.h"
#include "launch/fleet.h"
#include "launch/job_drill.h"
#include "launch/job_meeting.h"
#include "launch/job_output.h"
#include "launch/job_setup.h"
#include "launch/launch_checks.h"
#include "launch/local_ranks.h"
#include "launch/signal_watch.h"
#include "launch/stall_watch.h"
#include "launch/verdict.h"
#include "trireme/core/deadline.h"
#include "trireme/core/error.h"

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
// A turn of the loop at least this often: the fleet's heartbeat needs one.
constexpr std::int64_t kLongestTurn = 500;

// One job as the launcher of this machine sees it: the ranks here, the other machines, the signals.
class Job {
 public:
  explicit Job(const LaunchOptions& options) : options_(options) {}
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  int run() {
    ranks_.prepare();  // what is wrong on this machine alone is found before the others are met
    if (const int code = meet_the_others(); code != kExitOk) {
      return code;
    }
    start_ranks();
    if (elastic_) {
      elastic_->open_socket();
    }
    while (!is_over()) {
      wait_for_events();
      end_after_failure();
      const bool matters = !ending_ || meeting_.leadership() != nullptr;
      if (!fleet_ || !fleet_->lease_is_over() || !matters) {
        continue;
      }
      if (ending_) {
        ranks_.send_signal(SIGKILL);  // another may lead the job by now
      } else if (elastic_->leaves()) {
        ranks_.end_all();  // asked to end, and nobody to take leave of
      } else if (const int code = come_back(); code != kExitOk) {
        return code;
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
                                         complain_);
    if (drill_) {
      drill_->finish(ranks_.ranks(), code);
    }
    finish_output();
    return code;
  }

 private:
  // --- beginning

  // The exit code of a job that will not be.
  int meet_the_others() {
    try {
      begin_with(meeting_.meet(signals_, [this](const std::string& text) {
        complain_(text);
        output_.errors().flush();
      }));
      return kExitOk;
    } catch (const detail::MeetingFailed& failure) {
      complain_(failure.what());
      finish_output();
      return failure.code();
    }
  }

  void begin_with(std::optional<detail::Roster> roster) {
    auto reception = roster ? std::move(roster->reception) : nullptr;
    if (roster) {
      fleet_.emplace(std::move(*roster),
                     meeting_.timeout(),
                     kTimeToNotice + 2 * time_to_end() + kTimeForOthers);
    }
    try {
      if (elastic_) {
        elastic_->begin(fleet_ ? &*fleet_ : nullptr,
                        std::move(reception),
                        meeting_.timeout(),
                        meeting_.leadership());
      }
    } catch (const ConfigError& error) {
      leave_with(error.what());
      throw;
    }
  }

  // The others go on without this machine, or end: its ranks, of which nobody else can say whether
  // they still run, end here and now (Note [leases] in fleet_lease.cc).
  int come_back() {
    complain_(concat(fleet_->why_lease_is_over(),
                     ": its ranks are ended; trying to join the others again"));
    output_.errors().flush();
    ranks_.end_all();
    meeting_.tell_world(elastic_->lose_leader());
    fleet_.reset();
    if (const int code = meet_the_others(); code != kExitOk) {
      return code;
    }
    ranks_.start(meeting_.identity(), meeting_.take_listener());
    elastic_->open_socket();
    return kExitOk;
  }

  void begin_drill() {
    const auto options = detail::JobDrill::plan_of(options_, fleet_ ? fleet_->roster().drill : "");
    if (!options) {
      return;
    }
    drill_.emplace(*options, options_, elastic_->drill_hands());
    elastic_->set_drill(&*drill_);
    ranks_.share(detail::kEnvDrill, drill_->descriptor());
  }

  void start_ranks() {
    try {
      begin_drill();
      ranks_.start(meeting_.identity(), meeting_.take_listener());
    } catch (const std::exception& error) {
      leave_with(concat("could not start its ranks: ", error.what()));
      throw;
    }
  }

  // The other machines hear why there will be no ranks on this one.
  void leave_with(const std::string& trouble) {
    if (fleet_) {
      fleet_->tell(detail::event_of(JobEvent::Kind::kTrouble, options_.node_rank, trouble));
      fleet_->farewell();
    }
  }

  // --- running

  // All ranks have ended, here and elsewhere.
  bool is_over() {
    if (!ranks_.all_ended() || (elastic_ && elastic_->is_forming() && !ending_)) {
      swept_ = false;  // of an elastic job: they may have been started again
      return false;
    }
    if (elastic_ && elastic_->has_left()) {
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
    std::vector<pollfd> entries{{signals_.fd(), POLLIN, 0}};
    for (const detail::OutputQueue* queue : {&output_.lines(), &output_.errors()}) {
      entries.push_back({queue->empty() ? -1 : queue->fd(), POLLOUT, 0});
    }
    ranks_.add_to(entries);
    if (elastic_) {
      elastic_->add_to(entries);
    }
    if (fleet_) {
      fleet_->add_to(entries);
    }
    const std::int64_t longest = drill_               ? detail::JobDrill::kTurnMilliseconds
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
      drill_->turn(ranks_.ranks(), failures, fleet_ ? &*fleet_ : nullptr);
    }
    take_failures(failures);
    if (options_.elastic || ranks_.world_size() > 1) {  // else nobody waits
      stalls_.look(ranks_.ranks(), ranks_.world_size(), output_.full());
    }
    if (elastic_) {
      elastic_->serve(ending_.has_value());
    }
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
    for (JobEvent failure : failures) {
      failure.machine = options_.node_rank;
      take_note(failure);
    }
  }

  void hear_others() {
    if (!fleet_) {
      return;
    }
    fleet_->turn();
    for (const std::string& remark : fleet_->take_remarks()) {
      complain_(remark);
    }
    if (const int number = fleet_->stopped_by(); number != 0 && !asked_to_end_) {
      begin_ending(number);  // as on the machine that was stopped, at the same time
    }
  }

  void take_signal(int number) {
    if (detail::SignalWatch::asks_to_end(number)) {
      take_request(request_.take(), number);
    } else if (detail::SignalWatch::is_passed_on(number)) {
      ranks_.send_signal(number);
    } else if (number == SIGTSTP) {
      ranks_.send_signal(SIGTSTP);
      raise(SIGSTOP);
      ranks_.send_signal(SIGCONT);
    }
  }

  void take_request(detail::EndRequest::Kind kind, int number) {
    switch (kind) {
      case detail::EndRequest::Kind::kPartOfIt:
        return;
      case detail::EndRequest::Kind::kFirst:
        if (elastic_ && elastic_->leave(number)) {
          leaving_.emplace(detail::milliseconds_of(options_.elastic->grace_seconds));
          return;
        }
        take_note(detail::event_of(JobEvent::Kind::kStopped, options_.node_rank, "", number));
        break;
      case detail::EndRequest::Kind::kAgain:
        ranks_.send_signal(SIGKILL);
        if (fleet_) {
          fleet_->give_up_waiting();
        }
        break;
    }
    begin_ending(number);
  }

  // Something that ends the job has happened on this machine.
  void take_note(const JobEvent& event) {
    if (event.kind != JobEvent::Kind::kStopped) {
      ranks_.close_memberships();
    } else if (elastic_) {
      elastic_->end_in_good_order();  // where ranks are just meeting anew, they do that first
    }
    if (fleet_ && event.machine != options_.node_rank && elastic_ && elastic_->decides()) {
      fleet_->record_of(event.machine, event);
    } else if (fleet_) {
      fleet_->tell(event);
    } else {
      own_events_.push_back(event);
    }
  }

  std::vector<JobEvent> events() const { return fleet_ ? fleet_->events() : own_events_; }

  void begin_ending(int number) {
    ranks_.tell_to_end(number);
    ending_.emplace(time_to_end());
    asked_to_end_ = true;
  }

  // Moves on from a failure: time to notice, SIGTERM, SIGKILL.
  void end_after_failure() {
    if (leaving_ && elastic_->leaves() && leaving_->passed() && !ranks_.all_ended()) {
      complain_("the ranks here have not left in time (--grace): ending them");
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
      if (time_to_end() > kTimeForOthers) {
        detail::say_first_failure(events(), ranks_.world_size(), options_, complain_);
      }
      begin_ending(SIGTERM);
    } else {
      ranks_.send_signal(SIGKILL);
      ending_.emplace(time_to_end());
    }
  }

  Milliseconds time_to_end() const { return detail::milliseconds_of(options_.end_seconds); }

  void flush_output() {
    if (!output_.flush()) {
      return;
    }
    // A rank that speaks for the job sees itself that nobody listens, and goes on: unless what it
    // says comes through here, as that of any rank of an elastic job.
    if (options_.rank0_speaks && options_.elastic) {
      complain_(concat("standard output can no longer be written: the job continues; see ",
                       options_.log_dir));
    } else if (!options_.rank0_speaks) {  // as with any program whose reader goes away
      const std::string why = output_.why_lost();
      take_note(detail::event_of(
          why.empty() ? JobEvent::Kind::kTrouble : JobEvent::Kind::kGaveUp,
          options_.node_rank,
          concat("cannot write its output: ", why.empty() ? "nobody reads it any more" : why)));
      begin_ending(SIGTERM);
    }
  }

  void finish_output() { output_.finish(ending_ ? kTimeToNotice : kTimeToRead, signals_); }

  const LaunchOptions& options_;
  detail::JobMeeting meeting_{options_};  // asks the name server: before the signals are taken over
  detail::SignalWatch signals_;
  detail::JobOutput output_;
  const std::function<void(const std::string&)> complain_ = [this](const std::string& text) {
    output_.complain(text);
  };
  std::optional<detail::Fleet> fleet_;  // where there are other machines
  detail::LocalRanks ranks_{options_, {&output_.lines(), &output_.errors(), complain_}};
  std::optional<detail::ElasticJob> elastic_ =
      options_.elastic ? std::make_optional<detail::ElasticJob>(options_, ranks_, complain_)
                       : std::nullopt;
  std::optional<detail::JobDrill> drill_;
  detail::StallWatch stalls_{options_.stall_seconds, options_.elastic.has_value(), complain_};
  std::vector<JobEvent> own_events_;  // where there are no other machines
  std::optional<Deadline> ending_;
  detail::EndRequest request_;       // by signals
  std::optional<Deadline> leaving_;  // an elastic job that goes on elsewhere
  bool asked_to_end_ = false;
  bool swept_ = false;
};

}  // namespace

int launch(const LaunchOptions& options) {
  detail::check_options(options);
  return Job(options).run();
}

}  // namespace trireme
