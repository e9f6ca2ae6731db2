#include "comm/rendezvous/host.h"

#include <algorithm>
#include <cerrno>

#include "trireme/core/error.h"
#include "trireme/core/index.h"

namespace trireme::detail {
namespace {

// A stranger that has not been admitted after this is sent away; sooner where others wait for its
// place, since one of ours says its next word at once.
constexpr Milliseconds kPatience{5000};
constexpr Milliseconds kPatienceInACrowd{500};
constexpr std::size_t kMostRemarks = 20;

}  // namespace

Host::Host(Door& door, HostPolicy& policy, Pass pass, int places, const Deadline& deadline)
    : door_(door),
      policy_(policy),
      pass_(std::move(pass)),
      gathering_{deadline, {}, {}, {}, policy.place()} {
  gathering_.guests.resize(index(places));
}

Gathering Host::run() {
  while (gathering_.first_missing() >= 0) {
    const bool is_over = gathering_.superseded || (door_.is_closed() && talks_.empty());
    if (is_over || gathering_.deadline.passed()) {
      policy_.give_up(gathering_);
    }
    policy_.look(gathering_);
    wait_and_turn();
  }
  return std::move(gathering_);
}

void Host::add_to(std::vector<pollfd>& entries) const {
  const bool takes_more = talks_.size() < kMostStrangers && pause_.over();
  entries.push_back({takes_more ? door_.fd() : -1, POLLIN, 0});
  for (const Talk& talk : talks_) {
    entries.push_back({talk.link->fd(), talk.link->events(), 0});
  }
}

void Host::wait_and_turn() {
  std::vector<pollfd> entries;
  add_to(entries);
  for (const Guest& guest : gathering_.guests) {  // poll skips those that are not here
    entries.push_back({guest.link ? guest.link->fd() : -1, POLLIN, 0});
  }
  constexpr Milliseconds kTurn{100};
  door_.wait(entries, std::min(kTurn, gathering_.deadline.left() + Milliseconds(1)));
  forget_lost_guests(entries);
  turn();
}

void Host::turn() {
  std::vector<Talk> open;
  for (Talk& talk : talks_) {
    if (goes_on(talk)) {
      open.push_back(std::move(talk));
    }
  }
  talks_ = std::move(open);
  for (std::size_t turns = 0; turns < kMostStrangers && talks_.size() < kMostStrangers; ++turns) {
    if (!pause_.over() || !accept_one()) {
      break;
    }
  }
}

bool Host::accept_one() {
  auto link = door_.accept();
  if (!link) {
    if (pause_.failed(errno)) {
      warn(Of::kMember,
           concat("{} has no file descriptors left for those who join ({}): raise the limit "
                  "(ulimit -n)",
                  {policy_.role(), errno_text(errno)}));
    }
    return false;
  }
  if (const auto why = link->objection()) {  // who is told nothing
    warn(Of::kStranger,
         concat(policy_.self(), " refused ", policy_.stranger(), " (", link->peer(), "): ", *why));
    return true;
  }
  talks_.push_back({std::move(link), HostingSide(pass_), false, Deadline(kPatience)});
  return true;
}

// An admitted one says nothing until everyone is here: whatever comes means that it is gone.
void Host::forget_lost_guests(const std::vector<pollfd>& entries) {
  const std::size_t first = entries.size() - gathering_.guests.size();
  for (std::size_t place = 0; place < gathering_.guests.size(); ++place) {
    if (entries[first + place].revents != 0) {
      remark(Of::kMember, concat(gathering_.guests[place].name, " joined and then ended"));
      gathering_.guests[place] = {};
    }
  }
}

bool Host::goes_on(Talk& talk) {
  talk.link->flush();
  if (auto message = talk.link->next()) {
    return talk.challenged ? judge(talk, std::move(*message)) : challenge(talk, message->bytes);
  }
  if (!talk.link->open() && talk.challenged) {
    remark(Of::kStranger,
           concat("{} ({}) broke off before it proved that it knows the job's token",
                  {policy_.stranger(), talk.link->peer()}));
  }
  const bool is_crowded = talks_.size() >= kMostStrangers;
  const bool is_too_slow =
      talk.patience.passed() ||
      (is_crowded && talk.patience.elapsed_seconds() * 1000 >= kPatienceInACrowd.count());
  return talk.link->open() && (door_.comes_once() || !is_too_slow);
}

bool Host::challenge(Talk& talk, const std::string& greeting) {
  std::string why;
  const auto challenge = talk.side.take_greeting(greeting, &why);
  if (!challenge) {
    return refuse_stranger(talk, why);
  }
  talk.challenged = true;
  talk.link->send(*challenge);
  return true;
}

bool Host::judge(Talk& talk, Message message) {
  auto said = talk.side.take_introduction(message.bytes);
  if (!said) {
    return refuse_stranger(talk, policy_.why_no_proof(talk.side.has_token()));
  }
  message.bytes = std::move(*said);
  HostPolicy::Judgement judgement = policy_.judge(message, gathering_);
  // First: what is left over may differ in everything else too.
  if (talk.side.epoch() > pass_.epoch) {
    return give_way(talk, judgement.name);
  }
  if (talk.side.epoch() < pass_.epoch) {
    judgement.objection = concat(
        "it belongs to attempt {} at this job and {} to attempt {} (TRIREME_EPOCH), which has "
        "superseded it, so it is left over: end that process",
        {talk.side.epoch(), policy_.role(), pass_.epoch});
  }
  if (judgement.later && !judgement.objection) {
    return false;
  }
  if (judgement.objection) {
    const std::string text =
        concat(policy_.self(), " refused ", judgement.name, ": ", *judgement.objection);
    warn(Of::kMember, text);
    talk.link->send(talk.side.verdict(false, text));
    return false;
  }
  talk.link->send(talk.side.verdict(true, ""));
  talk.link->trust(talk.side.keys());
  gathering_.guests[index(judgement.place)] = {
      std::move(talk.link), judgement.name, std::move(message)};
  return false;
}

// Attempts count up, so this meeting is over. The joiner is hung up on, and tries again until the
// host of its own attempt is here; a refusal, which is for good, is for one that cannot.
bool Host::give_way(Talk& talk, const std::string& name) {
  gathering_.superseded = concat(
      "{} gives up: attempt {} at this job has begun ({} belongs to it) and supersedes attempt "
      "{} (TRIREME_EPOCH), from which this process is left over: end it",
      {policy_.self(), talk.side.epoch(), name, pass_.epoch});
  if (door_.comes_once()) {
    talk.link->send(talk.side.verdict(false, *gathering_.superseded));
  }
  return false;
}

// Who has not proven the token is told why, and nothing about this process; nor is anything that
// it said repeated here.
bool Host::refuse_stranger(Talk& talk, const std::string& why) {
  warn(
      Of::kStranger,
      concat(policy_.self(), " refused ", policy_.stranger(), " (", talk.link->peer(), "): ", why));
  talk.link->send(talk.side.verdict(false, why));
  return false;
}

void Host::remark(Of whom, const std::string& text) {
  auto& remarks = gathering_.remarks;
  if (remarks.size() == kMostRemarks) {
    const auto oldest = std::find_if(
        remarks.begin(), remarks.end(), [](const auto& one) { return one.is_of_stranger; });
    remarks.erase(oldest == remarks.end() ? remarks.begin() : oldest);
  }
  remarks.push_back({text, whom == Of::kStranger});
}

void Host::warn(Of whom, const std::string& text) {
  remark(whom, text);
  if (whom == Of::kMember || ++warnings_ <= kMostRemarks) {
    policy_.warn(text);
  }
}

int Gathering::count() const {
  return 1 + static_cast<int>(std::count_if(
                 guests.begin(), guests.end(), [](const Guest& guest) { return !!guest.link; }));
}

int Gathering::first_missing() const {
  for (std::size_t place = 0; place < guests.size(); ++place) {
    if (!guests[place].link && place != index(host)) {
      return static_cast<int>(place);
    }
  }
  return -1;
}

std::string Gathering::missing() const {
  std::string text;
  for (std::size_t place = 0; place < guests.size(); ++place) {
    if (!guests[place].link && place != index(host)) {
      text += concat(text.empty() ? "" : ", ", place);
    }
  }
  return text;
}

std::string Gathering::remarks_text() const {
  std::string text;
  for (const Remark& remark : remarks) {
    text += "; " + remark.text;
  }
  return text;
}

Gathering host_meeting(
    Door& door, HostPolicy& policy, const Pass& pass, int places, const Deadline& deadline) {
  return Host(door, policy, pass, places, deadline).run();
}

}  // namespace trireme::detail
