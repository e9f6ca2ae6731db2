#include "launch/fleet.h"

#include <algorithm>
#include <cmath>

#include "comm/rendezvous/packing.h"
#include "trireme/core/error.h"
#include "trireme/core/index.h"

namespace trireme::detail {
namespace {

// A machine is silent after the job's timeout, but never so soon that a busy one seems to be, nor
// so late that nobody would look.
constexpr Milliseconds kSoonestSilence{3000};
constexpr Milliseconds kLatestSilence{15000};
// The ranks of the others find a silent machine by their own deadline; they get this much longer.
constexpr Milliseconds kAfterDeadline{5000};
constexpr Milliseconds kFarewell{1000};
constexpr std::size_t kLongestWord = 2000;  // of the last lines of a rank, when they travel

// What a machine does not say of itself.
bool is_seen_from_outside(const JobEvent& event) {
  return event.kind == JobEvent::Kind::kGone || event.kind == JobEvent::Kind::kLost;
}

}  // namespace

Fleet::Fleet(Roster roster, Milliseconds timeout, Milliseconds patience)
    : roster_(std::move(roster)),
      silence_limit_(std::clamp(timeout, kSoonestSilence, kLatestSilence)),
      lost_limit_(std::max(timeout, silence_limit_) + kAfterDeadline),
      patience_(patience),
      peers_(roster_.ranks.size()) {
  for (std::size_t machine = 0; is_host() && machine < peers_.size(); ++machine) {
    peers_[machine].gone = machine != index(roster_.machine) && !roster_.links[machine]->open();
  }
}

void Fleet::add_to(std::vector<pollfd>& entries) const {
  for (const auto& link : roster_.links) {
    if (link->open()) {
      entries.push_back({link->fd(), link->events(), 0});
    }
  }
}

void Fleet::turn() {
  beat();
  const auto machines = static_cast<int>(peers_.size());
  for (int machine = 0; machine < machines; ++machine) {
    roster_.links[index(machine)]->flush();
    read_from(machine);  // before silence is judged: this launcher itself may have been stopped
    watch_silence(machine);
  }
  decide_whether_over();
}

void Fleet::read_from(int machine) {
  Link& link = *roster_.links[index(machine)];
  if (!link.open()) {
    return;
  }
  while (const auto message = read_word(link.next())) {
    heard_of(machine);
    take(machine, *message);
  }
  if (link.open() || finished_) {
    return;
  }
  depart(machine, event_of(JobEvent::Kind::kGone, machine, link.why_closed()));
}

void Fleet::depart(int machine, JobEvent event) {
  if (lease_is_over()) {
    return;  // the leader has hung up on this one, which was stopped or cut off meanwhile
  }
  if (leadership_ != nullptr && !is_host() && !is_ending()) {
    leaderless_ = true;
    remarks_.push_back(concat(roster_.name_of(machine), " ", what_happened(event)));
    return;
  }
  if (!lease_ || !is_host()) {
    record(event);
    return;
  }
  Peer& peer = peers_[index(machine)];
  peer.gone = true;
  peer.silent = false;
  roster_.links[index(machine)]->close();
  departures_.push_back(std::move(event));
}

void Fleet::take(int machine, const LauncherMessage& message) {
  switch (message.kind) {
    case LauncherWord::kEvent: {
      JobEvent event;
      if (!unpack_event(message.body, &event) || index(event.machine) >= peers_.size()) {
        return;
      }
      if (is_host()) {
        event.machine = machine;
      } else if (event.machine == roster_.machine && !is_seen_from_outside(event) &&
                 !unseen_.empty()) {
        unseen_.erase(unseen_.begin());  // the leader sends ours back in its place in the order
      }
      record(event);
      return;
    }
    case LauncherWord::kSilence:
    case LauncherWord::kHeard:
      if (!is_host()) {
        take_silence(message);
      }
      return;
    case LauncherWord::kDone:
      peers_[index(machine)].done = true;
      return;
    case LauncherWord::kFinished:
      finished_ = !is_host();
      return;
    case LauncherWord::kHandOver:
      if (!is_host() && leadership_ != nullptr) {
        leaderless_ = true;
        handed_over_ = message.body;
      }
      return;
    case LauncherWord::kHeartbeat: {
      Unpacker fields(message.body);
      const std::int64_t stamp = fields.number();
      const std::int64_t left = fields.number();
      if (!fields.complete() || !lease_) {
        return;
      }
      if (is_host()) {
        peers_[index(machine)].stamp = stamp;
      } else {
        const auto until = LeaseClock::time_point(Milliseconds(stamp) + Milliseconds(left));
        leased_until_ = std::max(leased_until_, until);
      }
      return;
    }
    default:
      mail_.push_back({machine, message});
  }
}

void Fleet::take_silence(const LauncherMessage& message) {
  Unpacker fields(message.body);
  const int machine = fields.number_in(0, static_cast<int>(peers_.size()) - 1);
  const std::int64_t milliseconds = fields.number();
  if (fields.complete() && machine != roster_.machine) {
    peers_[index(machine)].heard = Clock::now() - Milliseconds(milliseconds);
    say_silent(machine, message.kind == LauncherWord::kSilence);
  }
}

void Fleet::record(const JobEvent& event) {
  events_.push_back(event);
  if (event.kind == JobEvent::Kind::kGone) {
    peers_[index(event.machine)].gone = true;
    peers_[index(event.machine)].silent = false;  // gone says more
  }
  if (is_host()) {
    broadcast(LauncherWord::kEvent, pack_event(event));
  }
}

void Fleet::broadcast(LauncherWord kind, const std::string& body) {
  for (const auto& link : roster_.links) {
    say(*link, kind, body);
  }
}

void Fleet::tell(JobEvent event) {
  event.machine = roster_.machine;
  for (std::string& line : event.last_words) {
    line.resize(std::min(line.size(), kLongestWord));
  }
  if (is_host()) {
    record(event);
    return;
  }
  unseen_.push_back(event);
  say(leader_link(), LauncherWord::kEvent, pack_event(event));
}

void Fleet::record_of(int machine, JobEvent event) {
  event.machine = machine;
  record(event);
}

void Fleet::admit(int machine, const std::string& host, std::unique_ptr<Link> link) {
  roster_.links[index(machine)] = std::move(link);
  roster_.hosts[index(machine)] = host;
  peers_[index(machine)] = Peer();
  broadcast(LauncherWord::kHeard, Packer().number(machine).number(0).take());
}

void Fleet::set_ranks(const std::vector<int>& ranks) {
  roster_.ranks = ranks;
  for (std::size_t machine = 0; machine < peers_.size(); ++machine) {
    peers_[machine].done &= ranks[machine] == 0;
  }
}

void Fleet::done() {
  peers_[index(roster_.machine)].done = true;
  broadcast(LauncherWord::kDone, "");
}

void Fleet::heard_of(int machine) {
  Peer& peer = peers_[index(machine)];
  if (peer.silent) {
    say_silent(machine, false);
  }
  peer.heard = Clock::now();
}

void Fleet::watch_silence(int machine) {
  Peer& peer = peers_[index(machine)];
  if (!roster_.links[index(machine)]->open() || finished_) {
    return;
  }
  const auto quiet = Clock::now() - peer.heard;
  if (!peer.silent && quiet >= silence_limit_) {
    say_silent(machine, true);
  }
  if (!peer.lost && quiet >= lost_limit_) {
    peer.lost = true;
    JobEvent event;
    event.kind = JobEvent::Kind::kLost;
    event.machine = machine;
    event.number = static_cast<int>(std::lround(seconds_since(machine)));
    if (is_host()) {
      depart(machine, event);
    } else if (!lease_) {
      events_.push_back(event);
      // Should the leader come back, it learns why we are not there.
      event.kind = JobEvent::Kind::kTrouble;
      event.text = concat("has not heard from machine {} for {} s and ended its ranks",
                          {roster_.leader, event.number});
      event.machine = roster_.machine;
      say(leader_link(), LauncherWord::kEvent, pack_event(event));
    }
  }
}

void Fleet::say_silent(int machine, bool silent) {
  Peer& peer = peers_[index(machine)];
  if (peer.silent == silent) {
    return;
  }
  peer.silent = silent;
  const auto seconds = std::lround(seconds_since(machine));
  if (silent) {
    remarks_.push_back(
        concat("warning: {} has not been heard from for {} s: its launcher is stopped, or the "
               "network in between is cut",
               {roster_.name_of(machine), seconds}));
  } else {
    remarks_.push_back(
        concat(roster_.name_of(machine), " was heard from again, after ", seconds, " s"));
  }
  if (is_host()) {
    broadcast(silent ? LauncherWord::kSilence : LauncherWord::kHeard,
              Packer()
                  .number(machine)
                  .number(static_cast<std::int64_t>(seconds_since(machine) * 1000))
                  .take());
  }
}

void Fleet::decide_whether_over() {
  if (over_ || !peers_[index(roster_.machine)].done) {
    return;
  }
  if (is_ending() && !waiting_) {
    waiting_.emplace(patience_);
  }
  // Where its lease is over with the connection, this machine comes back, also if it has no ranks.
  const bool can_hear = is_host() || leader_link().open() || lease_is_over();
  over_ =
      finished_ || !can_hear || impatient_ || (is_host() && everyone_is_done()) ||
      (waiting_ && (waiting_->passed() || (!is_host() && peers_[index(roster_.leader)].silent)));
  if (over_ && is_host() && !finished_) {
    finished_ = true;
    broadcast(LauncherWord::kFinished, "");
  }
}

bool Fleet::everyone_is_done() const {
  if (lease_ && !is_ending()) {
    return complete_;
  }
  return std::all_of(peers_.begin(), peers_.end(), [&](const Peer& peer) {
    return peer.done || peer.gone || (peer.silent && is_ending());
  });
}

std::vector<JobEvent> Fleet::events() const {
  std::vector<JobEvent> all = events_;
  all.insert(all.end(), unseen_.begin(), unseen_.end());
  return all;
}

int Fleet::stopped_by() const {
  const auto found = std::find_if(events_.begin(), events_.end(), [&](const JobEvent& event) {
    return event.kind == JobEvent::Kind::kStopped && event.machine != roster_.machine;
  });
  return found == events_.end() ? 0 : found->number;
}

std::vector<std::string> Fleet::silent_machines() const {
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    const auto machine = static_cast<int>(i);
    if (peers_[i].silent) {
      texts.push_back(concat("{} has not been heard from for {} s",
                             {roster_.name_of(machine), std::lround(seconds_since(machine))}));
    }
  }
  return texts;
}

double Fleet::seconds_since(int machine) const {
  return std::chrono::duration<double>(Clock::now() - peers_[index(machine)].heard).count();
}

std::vector<std::string> Fleet::take_remarks() {
  return std::exchange(remarks_, {});
}

void Fleet::farewell() {
  // A connection closed over something unread is reset, and our last message might be lost: the
  // leader waits for the others to close theirs.
  const Deadline patience(kFarewell);
  const auto is_awaited = [&](const std::unique_ptr<Link>& link) {
    const auto machine = static_cast<std::size_t>(&link - roster_.links.data());
    return link->open() && !peers_[machine].silent && (is_host() || !link->all_sent());
  };
  const auto finish = [](Link& link) {
    link.flush();
    if (link.open() && link.all_sent()) {
      link.finish_sending();
    }
  };
  for (const auto& link : roster_.links) {
    finish(*link);
  }
  while (std::any_of(roster_.links.begin(), roster_.links.end(), is_awaited) &&
         !patience.passed()) {
    std::vector<pollfd> entries;
    add_to(entries);
    poll(entries.data(), entries.size(), static_cast<int>(patience.left().count()) + 1);
    for (const auto& link : roster_.links) {
      finish(*link);
      while (link->next()) {
      }
    }
  }
}

}  // namespace trireme::detail
