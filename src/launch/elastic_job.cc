#include "launch/elastic_job.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launch/job_setup.h"
#include "trireme/core/environment.h"
#include "trireme/core/error.h"
#include "trireme/core/index.h"
#include "trireme/core/printable.h"

namespace trireme::detail {
namespace {

// Epochs count up through all leaders of a job, and the next one does not know how many the last
// had. More than this nobody has.
constexpr std::int64_t kEpochsOfALeader = 1'000'000;

// As the ranks of a training do after a signal, all together and in good order.
bool ended_when_asked(const JobEvent& failure) {
  const int code = WIFEXITED(failure.number) ? WEXITSTATUS(failure.number) : 0;
  return code == 128 + SIGHUP || code == 128 + SIGINT || code == 128 + SIGTERM;
}

}  // namespace

ElasticJob::ElasticJob(const LaunchOptions& options,
                       LocalRanks& ranks,
                       std::function<void(const std::string&)> say)
    : launch_(options),
      elastic_(*options.elastic),
      local_(ranks),
      ranks_(elastic_, ranks, say),
      say_(std::move(say)) {}

void ElasticJob::begin(Fleet* fleet,
                       std::unique_ptr<Reception> reception,
                       Milliseconds wait,
                       Leadership* leadership) {
  fleet_ = fleet;
  leadership_ = leadership;
  told_ = {.epoch = -1};
  epochs_.reset();
  socket_.reset();
  if (fleet_ != nullptr) {
    fleet_->lease(milliseconds_of(elastic_.heartbeat_seconds), leadership);
  }
  reception_ = std::move(reception);
  if (fleet_ == nullptr || fleet_->roster().machine == fleet_->roster().leader) {
    decide_here(wait);
  }
  if (drill_ != nullptr) {
    drill_->begin(fleet_);
  }
}

std::string ElasticJob::lose_leader() {
  if (drill_ != nullptr && !epochs_) {
    drill_->machine_lost(fleet_->roster().leader, fleet_->why_lease_is_over());
  }
  last_leader_ = fleet_->roster().leader;
  handed_over_ = fleet_->handed_over().value_or("");
  if (!world_) {
    return "";
  }
  world_->reached.raise(local_.reached());
  return pack_order(*world_);
}

void ElasticJob::decide_here(Milliseconds wait) {
  const int ranks = fleet_ == nullptr ? launch_.ranks : fleet_->roster().world_size();
  if (elastic_.most == 0) {
    elastic_.least = elastic_.most = ranks;
  }
  const bool has_begun = fleet_ != nullptr && fleet_->roster().has_begun;
  TRIREME_CHECK(has_begun || (ranks >= elastic_.least && ranks <= elastic_.most),
                "--elastic: expected {} to {} ranks, found {} on all machines together (-n)",
                {elastic_.least, elastic_.most, ranks});
  epochs_.emplace(elastic_,
                  wait,
                  Epochs::Hands{.say = say_,
                                .end =
                                    [this](const EpochEnd& end) {
                                      ranks_.end_epoch(end);
                                      if (fleet_ != nullptr) {
                                        fleet_->broadcast(LauncherWord::kEndEpoch, pack_end(end));
                                      }
                                    },
                                .begin =
                                    [this](const EpochOrder& order) {
                                      if (drill_ != nullptr) {
                                        drill_->begin_world(fleet_);
                                      }
                                      if (fleet_ != nullptr) {
                                        fleet_->set_ranks(order.ranks);
                                        fleet_->broadcast(LauncherWord::kBeginEpoch,
                                                          pack_order(order));
                                      }
                                      world_ = order;
                                      ranks_.begin_epoch(order, launch_.node_rank);
                                    }});
  if (fleet_ == nullptr) {
    epochs_->add({.name = "", .capacity = elastic_.most, .listener = ""}, ranks);
    return;
  }
  const Roster& roster = fleet_->roster();
  for (std::size_t i = 0; i < roster.ranks.size(); ++i) {
    const auto machine = static_cast<int>(i);
    const bool is_this = machine == roster.machine;
    const bool is_here = is_this || fleet_->is_connected(machine);
    epochs_->add({.name = roster.name_of(machine),
                  .capacity = is_this ? launch_.ranks : roster.ranks[i],
                  .listener = roster.listeners[i],
                  .present = is_here,
                  .is_new = is_here && roster.joins},
                 roster.joins ? 0 : roster.ranks[i]);
  }
  if (roster.joins) {
    epochs_->take_over((roster.generation - 1) * kEpochsOfALeader,
                       milliseconds_of(elastic_.heartbeat_seconds));
    if (Rest rest; unpack_rest(handed_over_, &rest)) {
      epochs_->counter().leader_has_left(last_leader_, std::move(rest));
    }
    if (world_) {
      epochs_->counter().know(roster.machine, *world_);
    }
  }
}

bool ElasticJob::take_failures(const std::vector<JobEvent>& failures) {
  const MachineLoss loss{ranks_.status(), ranks_.explained(failures)};
  if (epochs_) {
    epochs_->take(launch_.node_rank, loss.status);
    return outlives(launch_.node_rank, loss.failures);
  }
  told_ = loss.status;
  fleet_->send(fleet_->roster().leader, LauncherWord::kLoss, pack_loss(loss));
  return true;
}

bool ElasticJob::outlives(int machine, const std::vector<JobEvent>& failures) {
  const bool has_ended =
      launch_.rank0_speaks && std::any_of(failures.begin(), failures.end(), ended_when_asked);
  return !has_ended && epochs_->take(machine, failures);
}

void ElasticJob::tell_status() {
  if (const MachineStatus now = ranks_.status(); now != told_) {
    told_ = now;
    fleet_->send(fleet_->roster().leader, LauncherWord::kStatus, pack_status(now));
  }
}

void ElasticJob::open_socket() {
  if (!epochs_ || elastic_.least == elastic_.most) {
    return;
  }
  try {
    socket_.emplace([this](const std::string& request) { return answer(request); });
    say_(concat("elastic job {}: trireme scale {} N changes its number of ranks, {} to {}",
                {getpid(), getpid(), elastic_.least, elastic_.most}));
  } catch (const ConfigError& error) {
    say_(concat("this job cannot be found by trireme scale: ", error.what()));
  }
}

void ElasticJob::serve(bool is_ending) {
  is_ending_ = is_ending;
  if (socket_) {
    socket_->turn();
  }
  if (drill_ != nullptr) {
    drill_->suffer(fleet_);
  }
}

std::string ElasticJob::answer(const std::string& request) {
  const std::string word = "scale ";
  const auto ranks =
      request.starts_with(word) ? parse_integer(request.substr(word.size())) : std::nullopt;
  if (!ranks || *ranks < 0 || *ranks > std::numeric_limits<int>::max()) {
    return concat("no: expected \"scale N\", found \"", printable(request), "\"");
  }
  return scale(static_cast<int>(*ranks), "trireme scale");
}

void ElasticJob::add_to(std::vector<pollfd>& entries) const {
  entries.push_back({socket_ ? socket_->fd() : -1, POLLIN, 0});
  if (reception_) {
    reception_->add_to(entries);
  }
}

std::vector<JobEvent> ElasticJob::turn() {
  std::vector<JobEvent> ends;
  ranks_.turn();
  if (fleet_ != nullptr && fleet_->lease_is_over()) {
    if (leaves_) {
      epochs_.reset();  // there is nothing to hand over
    }
    return ends;  // nothing is decided any more, nor obeyed
  }
  if (!epochs_) {
    for (const Fleet::Mail& mail : fleet_->take_mail()) {
      obey(mail);
    }
    tell_status();
    return ends;
  }
  epochs_->take(launch_.node_rank, ranks_.status());
  if (fleet_ != nullptr) {
    hear_machines(ends);
  }
  if (leaves_ && (epochs_->is_at_rest() || handing_over_->passed())) {
    hand_over(ends);
    return ends;
  }
  if (fleet_ != nullptr && !fleet_->leads_for_a_lease()) {
    return ends;
  }
  if (const std::string why = epochs_->turn(); !why.empty()) {
    ends.push_back(event_of(JobEvent::Kind::kGaveUp, launch_.node_rank, why));
  }
  if (fleet_ != nullptr) {
    fleet_->set_complete(epochs_->is_complete());
  }
  return ends;
}

void ElasticJob::hear_machines(std::vector<JobEvent>& ends) {
  for (const Fleet::Mail& mail : fleet_->take_mail()) {
    take_mail(mail, ends);
  }
  for (const JobEvent& event : fleet_->take_departures()) {
    if (drill_ != nullptr) {
      drill_->machine_lost(
          event.machine,
          concat(fleet_->roster().name_of(event.machine), " ", what_happened(event)));
    }
    epochs_->machine_lost(event.machine, what_happened(event));
  }
  let_in();
}

void ElasticJob::take_mail(const Fleet::Mail& mail, std::vector<JobEvent>& ends) {
  const std::string& body = mail.message.body;
  if (mail.message.kind == LauncherWord::kDrill && drill_ != nullptr) {
    drill_->take(mail, *fleet_);
  } else if (mail.message.kind == LauncherWord::kStatus) {
    if (MachineStatus status; unpack_status(body, &status)) {
      epochs_->take(mail.machine, status);
    }
  } else if (mail.message.kind == LauncherWord::kLoss) {
    MachineLoss loss;
    if (unpack_loss(body, &loss)) {
      epochs_->take(mail.machine, loss.status);
      if (!outlives(mail.machine, loss.failures)) {
        for (JobEvent& failure : loss.failures) {
          failure.machine = mail.machine;
          ends.push_back(failure);
        }
      }
    }
  } else if (mail.message.kind == LauncherWord::kLeave) {
    epochs_->machine_leaves(mail.machine);
  }
}

// What the leader has decided.
void ElasticJob::obey(const Fleet::Mail& mail) {
  const LauncherMessage& message = mail.message;
  if (message.kind == LauncherWord::kDrill && drill_ != nullptr) {
    drill_->take(mail, *fleet_);
  } else if (message.kind == LauncherWord::kEndEpoch) {
    if (EpochEnd end; unpack_end(message.body, &end) && end.epoch == ranks_.status().epoch) {
      if (end.lost) {
        say_(concat("the ranks meet anew: ", end.why));
      }
      ranks_.end_epoch(end);
    }
  } else if (message.kind == LauncherWord::kBeginEpoch) {
    EpochOrder order;
    if (unpack_order(message.body, &order) &&
        order.ranks.size() == static_cast<std::size_t>(launch_.nodes)) {
      fleet_->set_ranks(order.ranks);
      world_ = order;
      ranks_.begin_epoch(order, launch_.node_rank);
      if (leaves_) {
        say_("this machine has left the job, which continues without it");
      }
    }
  }
}

void ElasticJob::let_in() {
  const auto presence = [this](int machine) {
    return !fleet_->is_connected(machine)      ? Reception::Presence::kAbsent
           : fleet_->is_here_for_sure(machine) ? Reception::Presence::kHere
                                               : Reception::Presence::kSilent;
  };
  for (Reception::Arrival& arrival : reception_->turn(presence)) {
    const int machine = arrival.hello.machine;
    fleet_->admit(machine, arrival.hello.host, std::move(arrival.link));
    if (EpochOrder world; unpack_order(arrival.hello.world, &world)) {
      epochs_->counter().know(machine, world);
    }
    epochs_->machine_came(machine,
                          {.name = fleet_->roster().name_of(machine),
                           .capacity = arrival.hello.ranks,
                           .listener = arrival.listener});
  }
}

std::string ElasticJob::scale(int ranks, const std::string& who) {
  return is_ending_ ? "no: the job is ending" : epochs_->scale(ranks, who);
}

void ElasticJob::end_in_good_order() {
  if (epochs_) {
    epochs_->end_in_good_order();
  }
}

}  // namespace trireme::detail
