#include <algorithm>

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

// Machine 0's side of the meeting.
class LauncherHost final : public HostPolicy {
 public:
  explicit LauncherHost(const MeetingOptions& options)
      : options_(options), hello_(make_machine_hello(options)) {}

  std::string self() const override { return concat("machine 0 (", hello_.host, ")"); }
  std::string role() const override { return "machine 0"; }
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
    return concat(has_token == has_secret ? "its token is not that of machine 0"
                  : has_token             ? "it has a token and machine 0 has none"
                                          : "it has no token and machine 0 has one",
                  ": give the same TRIREME_TOKEN or --token-file on every machine");
  }

  void look(Gathering& gathering) override {
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
      return concat(
          "it uses Trireme {} and machine 0 uses {}: install the same version on every machine",
          {hello.library, hello_.library});
    }
    if (hello.machines != hello_.machines) {
      return concat(
          "it was started with --nnodes {} and machine 0 with --nnodes {}: give the same on every "
          "machine",
          {hello.machines, hello_.machines});
    }
    const bool is_elastic = hello_.lease.count() > 0;
    if ((hello.lease.count() > 0) != is_elastic) {
      return concat(
          "it was started {} --elastic or --restart and machine 0 {}: give the same on every "
          "machine",
          {is_elastic ? "without" : "with", is_elastic ? "with" : "without"});
    }
    if (hello.lease != hello_.lease) {
      const auto seconds = [](Milliseconds time) {
        return std::chrono::duration<double>(time).count();
      };
      return concat(
          "it was started with --heartbeat {} and machine 0 with {}: give the same on every "
          "machine",
          {seconds(hello.lease), seconds(hello_.lease)});
    }
    if (hello.machine < 1 || hello.machine >= hello_.machines) {
      return concat("--node-rank {} is outside the job: machine 0 waits for 1 to {}",
                    {hello.machine, hello_.machines - 1});
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

}  // namespace

Roster host_launchers(const MeetingOptions& options) {
  TcpDoor door(listen_at(options.addresses, options.place));
  LauncherHost policy(options);
  policy.say_what_is_unsafe();
  Gathering gathering =
      host_meeting(door, policy, options.pass(), options.machines, Deadline(options.timeout));
  Roster roster;
  roster.job = random_job_name();
  const bool has_secret = !options.secret.empty();
  roster.token = has_secret ? token_from_secret(options.secret, roster.job) : random_token();
  for (Guest& guest : gathering.guests) {
    MachineHello hello = make_machine_hello(options);  // the first is this machine
    if (guest.link) {
      unpack_hello(guest.said.bytes, &hello);
    }
    roster.ranks.push_back(hello.ranks);
    roster.hosts.push_back(hello.host);
    roster.listeners.push_back(guest.link ? listener_of(hello, *guest.link) : "");
    roster.links.push_back(guest.link ? std::move(guest.link) : std::make_unique<TcpLink>());
  }
  roster.rank0_listener = listen_beside(door.listener());
  const int port = port_of(roster.rank0_listener);
  roster.rendezvous = MeetingPlace{options.place.host, port}.text();
  const std::string start = pack_start(roster, port, !has_secret);
  for (const auto& link : roster.links) {
    say(*link, LauncherWord::kStart, start);
  }
  roster.listeners.front() = roster.rendezvous;
  if (options.lease.count() > 0) {
    roster.joins = true;
    const std::string joined = pack_start(roster, port, !has_secret);
    roster.joins = false;
    roster.reception = std::make_unique<OpenDoor>(options, door.take_listener(), joined);
  }
  return roster;
}

}  // namespace trireme::detail
