#include <algorithm>

#include <fcntl.h>

#include "comm/rendezvous/host.h"
#include "comm/rendezvous/tcp_link.h"
#include "launch/fleet_meeting.h"
#include "launch/job_setup.h"
#include "trireme/core/index.h"
#include "trireme/launch/launcher.h"

namespace trireme::detail {
namespace {

constexpr Milliseconds kTimeToSay{5000};         // before saying who is still missing
constexpr Milliseconds kTimeForTheOthers{1000};  // to read that there is no job

// The leader's side of the meeting.
class LauncherHost final : public HostPolicy {
 public:
  explicit LauncherHost(const MeetingOptions& options)
      : options_(options), hello_(make_machine_hello(options)) {}

  std::string self() const override { return concat(role(), " (", hello_.host, ")"); }
  std::string role() const override { return options_.leader_name(); }
  int place() const override { return options_.leader; }
  std::string stranger() const override { return "a launcher"; }
  void warn(const std::string& text) const override { options_.say(text); }

  Judgement judge(const Message& said, const Gathering& gathering) const override {
    MachineHello hello;
    if (!unpack_hello(said.bytes, &hello)) {
      return {0, "a launcher that knows the token", "it does not say who it is as launchers do"};
    }
    Judgement judgement{hello.machine, hello.name(), objection_to(hello)};
    if (judgement.objection) {
      return judgement;
    }
    const Guest& guest = gathering.guests[index(hello.machine)];
    const Reception::Presence presence = guest.link  ? Reception::Presence::kHere
                                         : presence_ ? presence_(hello.machine)
                                                     : Reception::Presence::kAbsent;
    if (presence == Reception::Presence::kHere) {
      judgement.objection =
          concat("--node-rank {} is already taken by {}: give every machine its own",
                 {hello.machine, guest.link ? guest.name : "a machine that is here"});
    }
    judgement.later = presence == Reception::Presence::kSilent;  // until it is lost
    return judgement;
  }

  std::string why_no_proof(bool has_token) const override {
    const bool has_secret = !options_.secret.empty();
    return concat(has_token == has_secret ? concat("its token is not that of ", role())
                  : has_token             ? concat("it has a token and ", role(), " has none")
                                          : concat("it has no token and ", role(), " has one"),
                  ": give the same TRIREME_TOKEN or --token-file on every machine");
  }

  void look(Gathering& gathering) override {
    if (options_.store != nullptr) {
      options_.store->look();
    }
    if (const int number = take_ending_signal(*options_.signals)) {
      tell_guests(gathering,
                  {kExitRankFailed, concat(self(), " was ", stopped_by_signal(number).what())});
      throw stopped_by_signal(number);
    }
    if (!said_who_is_missing_ &&
        gathering.deadline.elapsed_seconds() * 1000 >= kTimeToSay.count()) {
      said_who_is_missing_ = true;
      options_.say(
          concat("waiting at {} for machine {}, at most {} s in all",
                 {options_.place.text(), gathering.missing(), options_.timeout_seconds()}));
    }
  }

  [[noreturn]] void give_up(Gathering& gathering) override {
    const MeetingFailed failure =
        gathering.superseded
            ? MeetingFailed(kExitRankFailed, *gathering.superseded)
            : MeetingFailed(kExitRendezvousTimedOut,
                            concat("the machines did not meet within {} s: {} of {} reached {}, "
                                   "missing: {}; check that each was started with its --node-rank, "
                                   "and that it can reach this address and port (firewall){}",
                                   {options_.timeout_seconds(),
                                    gathering.count(),
                                    options_.machines,
                                    options_.place.text(),
                                    gathering.missing(),
                                    gathering.remarks_text()}));
    tell_guests(gathering, failure);
    throw MeetingFailed(failure);
  }

  // Of the machines that are not guests of the meeting, once the job has begun.
  void ask_presence_of(std::function<Reception::Presence(int)> presence) {
    presence_ = std::move(presence);
  }

  void say_what_is_unsafe() const {
    if (options_.secret.empty()) {
      options_.say(concat("warning: there is no token, so anyone who can reach ",
                          options_.place.text(),
                          " could join this job: give the same TRIREME_TOKEN or --token-file on "
                          "every machine"));
    }
    const bool written_as_loopback =
        options_.place.host == "localhost" || options_.place.host == options_.addresses[0].text();
    if (options_.addresses[0].is_loopback() && !written_as_loopback) {
      options_.say(
          concat("warning: here \"{}\" is {}, which no other machine can reach: give machine 0's "
                 "network address for --rendezvous",
                 {options_.place.host, options_.addresses[0].text()}));
    }
  }

 private:
  std::optional<std::string> objection_to(const MachineHello& hello) const {
    if (hello.library != hello_.library) {
      return concat("it uses Trireme {} and {} uses {}: install the same version on every machine",
                    {hello.library, role(), hello_.library});
    }
    if (hello.machines != hello_.machines) {
      return concat(
          "it was started with --nnodes {} and {} with --nnodes {}: give the same on every machine",
          {hello.machines, role(), hello_.machines});
    }
    if (hello.encrypt != hello_.encrypt) {
      return concat(
          "it was started {} --encrypt and {} {}: give the same on every machine",
          {hello.encrypt ? "with" : "without", role(), hello_.encrypt ? "with" : "without"});
    }
    const bool is_elastic = hello_.lease.count() > 0;
    if ((hello.lease.count() > 0) != is_elastic) {
      return concat(
          "it was started {} --elastic or --restart and {} {}: give the same on every machine",
          {is_elastic ? "without" : "with", role(), is_elastic ? "with" : "without"});
    }
    if (hello.lease != hello_.lease) {
      const auto seconds = [](Milliseconds time) {
        return std::chrono::duration<double>(time).count();
      };
      return concat(
          "it was started with --heartbeat {} and {} with {}: give the same on every machine",
          {seconds(hello.lease), role(), seconds(hello_.lease)});
    }
    if (hello.machine == hello_.machine && options_.store != nullptr) {
      return concat("--node-rank {} is already taken by {}: give every machine its own",
                    {hello.machine, self()});
    }
    const int first = options_.store == nullptr ? 1 : 0;
    if (hello.machine < first || hello.machine >= hello_.machines) {
      return concat("--node-rank {} is outside the job: {} waits for {} to {}",
                    {hello.machine, role(), first, hello_.machines - 1});
    }
    return std::nullopt;
  }

  static void tell_guests(Gathering& gathering, const MeetingFailed& failure) {
    // A connection closed over something unread is reset, and the message might be lost: wait for
    // the others to close theirs.
    const Deadline patience(kTimeForTheOthers);
    for (const Guest& guest : gathering.guests) {
      if (guest.link) {
        say(*guest.link, LauncherWord::kCancelled, pack_cancellation(failure));
        guest.link->finish_sending();
      }
    }
    for (const Guest& guest : gathering.guests) {
      while (guest.link && guest.link->receive(patience)) {
      }
    }
  }

  const MeetingOptions& options_;
  const MachineHello hello_;
  std::function<Reception::Presence(int)> presence_;
  bool said_who_is_missing_ = false;
};

std::string listener_of(const MachineHello& hello, const Link& link) {
  return hello.listener_port > 0 ? MeetingPlace{link.peer(), hello.listener_port}.text() : "";
}

class OpenDoor final : public Reception {
 public:
  OpenDoor(const MeetingOptions& options, FileDescriptor listener, std::string start)
      : door_(std::move(listener)),
        policy_(options),
        host_(door_, policy_, options.pass(), options.machines, Deadline(Milliseconds(0))),
        start_(std::move(start)) {}

  void add_to(std::vector<pollfd>& entries) const override { host_.add_to(entries); }

  std::vector<Arrival> turn(const std::function<Presence(int)>& presence) override {
    policy_.ask_presence_of(presence);
    host_.turn();
    std::vector<Arrival> arrivals;
    for (Guest& guest : host_.gathering().guests) {
      MachineHello hello;
      if (guest.link && unpack_hello(guest.said.bytes, &hello)) {
        say(*guest.link, LauncherWord::kStart, start_);
        std::string listener = listener_of(hello, *guest.link);
        arrivals.push_back({std::move(hello), std::move(listener), std::move(guest.link)});
      }
      guest = {};
    }
    return arrivals;
  }

 private:
  TcpDoor door_;
  LauncherHost policy_;
  Host host_;
  std::string start_;
};

// Everyone, before the job begins.
void gather(Roster& roster, TcpDoor& door, LauncherHost& policy, const MeetingOptions& options) {
  Gathering gathering =
      host_meeting(door, policy, options.pass(), options.machines, Deadline(options.timeout));
  for (Guest& guest : gathering.guests) {
    MachineHello hello = make_machine_hello(options);  // the one without a link is this machine
    if (guest.link) {
      unpack_hello(guest.said.bytes, &hello);
    }
    roster.ranks.push_back(hello.ranks);
    roster.hosts.push_back(hello.host);
    roster.listeners.push_back(guest.link ? listener_of(hello, *guest.link) : "");
    roster.links.push_back(guest.link ? std::move(guest.link) : std::make_unique<TcpLink>());
  }
}

// Nobody yet: the job has begun, and those who were in it come one by one.
void expect_all(Roster& roster, const MeetingOptions& options) {
  roster.has_begun = true;
  roster.ranks = options.store->ranks;
  roster.ranks.resize(index(options.machines), options.ranks);
  roster.listeners.resize(index(options.machines));
  for (int machine = 0; machine < options.machines; ++machine) {
    const bool is_here = machine == options.machine;
    roster.hosts.push_back(is_here ? host_name() : "");
    roster.links.push_back(std::make_unique<TcpLink>());
  }
}

// With a store all machines, this one among them, join a job that begins with its first epoch.
std::string begin_by_store(Roster& roster, const MeetingOptions& options, bool with_token) {
  roster.generation = options.store->generation;
  roster.joins = true;
  roster.rendezvous = MeetingPlace{options.place.host, options.listener_port}.text();
  roster.listeners[index(options.machine)] = roster.rendezvous;
  if (!roster.has_begun) {
    options.store->begin(roster.ranks);
  }
  return pack_start(roster, options.listener_port, with_token);
}

}  // namespace

Roster host_launchers(const MeetingOptions& options) {
  const bool has_store = options.store != nullptr;
  TcpDoor door(has_store ? FileDescriptor(fcntl(options.store->door, F_DUPFD_CLOEXEC, 0))
                         : listen_at(options.addresses, options.place));
  LauncherHost policy(options);
  policy.say_what_is_unsafe();
  Roster roster;
  roster.machine = roster.leader = options.leader;
  roster.job = has_store ? options.store->job : random_job_name();
  roster.drill = options.drill;
  const bool has_secret = !options.secret.empty();
  roster.token = has_secret ? token_from_secret(options.secret, roster.job) : random_token();
  if (has_store && !options.store->ranks.empty()) {
    expect_all(roster, options);
  } else {
    gather(roster, door, policy, options);
  }
  std::string joined;
  if (has_store) {
    joined = begin_by_store(roster, options, !has_secret);
    for (const auto& link : roster.links) {
      say(*link, LauncherWord::kStart, joined);
    }
  } else {
    roster.rank0_listener = listen_beside(door.listener());
    const int port = port_of(roster.rank0_listener);
    roster.rendezvous = MeetingPlace{options.place.host, port}.text();
    const std::string start = pack_start(roster, port, !has_secret);
    for (const auto& link : roster.links) {
      say(*link, LauncherWord::kStart, start);
    }
    roster.listeners.front() = roster.rendezvous;
    roster.joins = true;
    joined = pack_start(roster, port, !has_secret);
    roster.joins = false;
  }
  if (options.lease.count() > 0) {
    roster.reception = std::make_unique<OpenDoor>(options, door.take_listener(), joined);
  }
  return roster;
}

}  // namespace trireme::detail
