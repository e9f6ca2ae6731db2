#include "launch/elastic_job.h"

#include <limits>

#include <unistd.h>

#include "launch/job_setup.h"
#include "trireme/core/environment.h"
#include "trireme/core/error.h"
#include "trireme/core/index.h"
#include "trireme/core/printable.h"

namespace trireme::detail {

ElasticJob::ElasticJob(const LaunchOptions& options,
                       LocalRanks& ranks,
                       std::function<void(const std::string&)> say)
    : launch_(options),
      elastic_(*options.elastic),
      local_(ranks),
      ranks_(elastic_, ranks, say),
      say_(std::move(say)) {}

void ElasticJob::begin(Fleet* fleet, std::unique_ptr<Reception> reception, Milliseconds wait) {
  fleet_ = fleet;
  told_ = {.epoch = -1};
  if (fleet_ != nullptr) {
    fleet_->lease(milliseconds_of(elastic_.heartbeat_seconds));
  }
  reception_ = std::move(reception);
  if (launch_.node_rank == 0) {
    decide_here(wait);
  }
}

void ElasticJob::decide_here(Milliseconds wait) {
  const int ranks = fleet_ == nullptr ? launch_.ranks : fleet_->roster().world_size();
  if (elastic_.most == 0) {
    elastic_.least = elastic_.most = ranks;
  }
  TRIREME_CHECK(ranks >= elastic_.least && ranks <= elastic_.most,
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
                                      if (fleet_ != nullptr) {
                                        fleet_->set_ranks(order.ranks);
                                        fleet_->broadcast(LauncherWord::kBeginEpoch,
                                                          pack_order(order));
                                      }
                                      ranks_.begin_epoch(order, 0);
                                    }});
  if (fleet_ == nullptr) {
    epochs_->add({.name = "", .capacity = elastic_.most, .listener = ""}, ranks);
    return;
  }
  const Roster& roster = fleet_->roster();
  for (std::size_t machine = 0; machine < roster.ranks.size(); ++machine) {
    epochs_->add({.name = roster.name_of(static_cast<int>(machine)),
                  .capacity = roster.ranks[machine],
                  .listener = roster.listeners[machine]},
                 roster.ranks[machine]);
  }
}

bool ElasticJob::take_failures(const std::vector<JobEvent>& failures) {
  const MachineLoss loss{ranks_.status(), ranks_.explained(failures)};
  if (epochs_) {
    epochs_->take(0, loss.status);
    return epochs_->take(0, loss.failures);
  }
  told_ = loss.status;
  fleet_->send(0, LauncherWord::kLoss, pack_loss(loss));
  return true;
}

void ElasticJob::tell_status() {
  if (const MachineStatus now = ranks_.status(); now != told_) {
    told_ = now;
    fleet_->send(0, LauncherWord::kStatus, pack_status(now));
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
    say_(concat("trireme scale will not find this job: ", error.what()));
  }
}

void ElasticJob::serve(bool is_ending) {
  is_ending_ = is_ending;
  if (socket_) {
    socket_->turn();
  }
}

std::string ElasticJob::answer(const std::string& request) {
  const std::string word = "scale ";
  const auto ranks =
      request.starts_with(word) ? parse_integer(request.substr(word.size())) : std::nullopt;
  if (!ranks || *ranks < 0 || *ranks > std::numeric_limits<int>::max()) {
    return concat("no: expected \"scale N\", found \"", printable(request), "\"");
  }
  return is_ending_ ? "no: the job is ending" : scale(static_cast<int>(*ranks));
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
  if (!epochs_) {
    for (const Fleet::Mail& mail : fleet_->take_mail()) {
      obey(mail.message);
    }
    tell_status();
    return ends;
  }
  epochs_->take(0, ranks_.status());
  if (fleet_ != nullptr) {
    hear_machines(ends);
  }
  if (const std::string why = epochs_->turn(); !why.empty()) {
    JobEvent event;
    event.kind = JobEvent::Kind::kGaveUp;
    event.text = why;
    ends.push_back(event);
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
    epochs_->machine_lost(event.machine, what_happened(event));
  }
  let_in();
}

void ElasticJob::take_mail(const Fleet::Mail& mail, std::vector<JobEvent>& ends) {
  const std::string& body = mail.message.body;
  if (mail.message.kind == LauncherWord::kStatus) {
    if (MachineStatus status; unpack_status(body, &status)) {
      epochs_->take(mail.machine, status);
    }
  } else if (mail.message.kind == LauncherWord::kLoss) {
    MachineLoss loss;
    if (unpack_loss(body, &loss)) {
      epochs_->take(mail.machine, loss.status);
      if (!epochs_->take(mail.machine, loss.failures)) {
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

// What machine 0 has decided.
void ElasticJob::obey(const LauncherMessage& message) {
  if (message.kind == LauncherWord::kEndEpoch) {
    if (EpochEnd end; unpack_end(message.body, &end) && end.epoch == ranks_.status().epoch) {
      if (end.lost) {
        say_(end.why);
      }
      ranks_.end_epoch(end);
    }
  } else if (message.kind == LauncherWord::kBeginEpoch) {
    EpochOrder order;
    if (unpack_order(message.body, &order) &&
        order.ranks.size() == static_cast<std::size_t>(launch_.nodes)) {
      fleet_->set_ranks(order.ranks);
      ranks_.begin_epoch(order, launch_.node_rank);
      if (leaves_) {
        say_("this machine has left the job, which goes on without it");
      }
    }
  }
}

void ElasticJob::let_in() {
  const auto presence = [this](int machine) {
    return !fleet_->is_connected(machine) ? Reception::Presence::kAbsent
           : fleet_->is_quiet(machine)    ? Reception::Presence::kSilent
                                          : Reception::Presence::kHere;
  };
  for (Reception::Arrival& arrival : reception_->turn(presence)) {
    const int machine = arrival.hello.machine;
    fleet_->admit(machine, arrival.hello.host, std::move(arrival.link));
    epochs_->machine_came(machine,
                          {.name = fleet_->roster().name_of(machine),
                           .capacity = arrival.hello.ranks,
                           .listener = arrival.listener});
  }
}

std::string ElasticJob::scale(int ranks) {
  return epochs_->scale(ranks);
}

void ElasticJob::end_in_good_order() {
  if (epochs_) {
    epochs_->end_in_good_order();
  }
}

void ElasticJob::leave() {
  leaves_ = true;
  fleet_->send(0, LauncherWord::kLeave, "");
}

}  // namespace trireme::detail
