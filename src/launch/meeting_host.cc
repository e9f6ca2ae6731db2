#include <algorithm>
#include <cerrno>

#include <poll.h>

#include "comm/rendezvous/accept_pause.h"
#include "launch/fleet_admission.h"
#include "launch/fleet_meeting.h"
#include "launch/job_setup.h"
#include "trireme/core/index.h"
#include "trireme/launch/launcher.h"

namespace trireme::detail {
namespace {

// For a connection that does not go on talking; less where others wait for its place, since a
// launcher says its next word at once.
constexpr Milliseconds kStrangerPatience{5000};
constexpr Milliseconds kPatienceInACrowd{500};
constexpr Milliseconds kTimeToSay{5000};    // before saying who is still missing
constexpr Milliseconds kTimeToTell{1000};   // for the others to read that there is no job
constexpr std::size_t kMostStrangers = 64;  // at once; more wait in the kernel's queue
constexpr std::size_t kMostRemarks = 20;

// Machine 0's side of the meeting: several conversations at once, so that nobody can hold up the
// others by not talking.
class Host {
 public:
  explicit Host(const MeetingOptions& options)
      : options_(options),
        deadline_(options.timeout),
        listener_(listen_at(options.addresses, options.place)),
        hello_(make_machine_hello(0, options.machines, options.ranks, !options.secret.empty())),
        members_(index(options.machines)) {}

  Roster run() {
    say_what_is_unsafe();
    while (admitted_ + 1 < options_.machines) {
      if (deadline_.passed()) {
        cancel({kExitRendezvousTimedOut, timeout_message()});
      }
      poll_once();
    }
    return start_everyone();
  }

 private:
  enum class Stage { kHello, kProof };
  struct Conversation {
    LauncherLink link;
    std::string address;
    Stage stage = Stage::kHello;
    std::string hello_bytes;
    MachineHello hello;
    std::string expected_proof;
    Deadline patience{kStrangerPatience};
  };
  struct Member {
    LauncherLink link;
    MachineHello hello;
  };

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
      options_.say(concat(
          "warning: here \"",
          options_.place.host,
          "\" is ",
          options_.addresses[0].text(),
          ", which no other machine can reach: give machine 0's network address for --rendezvous"));
    }
  }

  void poll_once() {
    // Connections beyond what is talked to at once stay in the kernel's queue.
    const bool takes_more = talks_.size() < kMostStrangers && pause_.over();
    std::vector<pollfd> entries{{options_.signals->fd(), POLLIN, 0},
                                {takes_more ? listener_.get() : -1, POLLIN, 0}};
    for (const Conversation& talk : talks_) {
      entries.push_back({talk.link.fd(), talk.link.events(), 0});
    }
    for (const Member& member : members_) {
      entries.push_back({member.link.fd(), POLLIN, 0});  // poll skips those that are not here yet
    }
    poll(entries.data(),
         entries.size(),
         static_cast<int>(std::min<std::int64_t>(deadline_.left().count() + 1, 100)));
    if (const int number = take_ending_signal(*options_.signals)) {
      tell_members(
          {kExitRankFailed,
           concat("machine 0 (", hello_.host, ") was ", stopped_by_signal(number).what())});
      throw stopped_by_signal(number);
    }
    forget_lost_members();
    std::vector<Conversation> open;
    for (Conversation& talk : talks_) {
      if (listen_to(talk) && !has_lost_patience(talk)) {
        open.push_back(std::move(talk));
      }
    }
    talks_ = std::move(open);
    while (talks_.size() < kMostStrangers && pause_.over()) {
      FileDescriptor fd = accept_from(listener_);
      if (!fd.valid()) {
        if (pause_.failed(errno)) {
          options_.say(concat("warning: no file descriptors are left for connections to ",
                              options_.place.text(),
                              " (",
                              errno_text(errno),
                              "): raise the limit (ulimit -n)"));
        }
        break;
      }
      Conversation talk;
      talk.address = peer_address(fd);
      talk.link = LauncherLink(std::move(fd), kLongestFromStranger);
      talks_.push_back(std::move(talk));
    }
    if (!said_who_is_missing_ && deadline_.elapsed_seconds() * 1000 >= kTimeToSay.count()) {
      said_who_is_missing_ = true;
      options_.say(concat("waiting at ",
                          options_.place.text(),
                          " for machine ",
                          missing(),
                          ", at most ",
                          options_.timeout_seconds(),
                          " s in all"));
    }
  }

  bool has_lost_patience(const Conversation& talk) const {
    const bool is_crowded = talks_.size() >= kMostStrangers;
    return talk.patience.passed() ||
           (is_crowded && talk.patience.elapsed_seconds() * 1000 >= kPatienceInACrowd.count());
  }

  // An admitted launcher says nothing until everyone is here.
  void forget_lost_members() {
    for (Member& member : members_) {
      if (member.link.open() && !member.link.next() && member.link.open()) {
        continue;
      }
      if (!member.hello.nonce.empty()) {
        remark(concat(member.hello.name(), " joined and then ended"));
        member = {};
        --admitted_;
      }
    }
  }

  // The next message of a conversation; false when the conversation is over.
  bool listen_to(Conversation& talk) {
    talk.link.flush();
    const auto message = talk.link.next();
    if (!message) {
      if (!talk.link.open() && talk.stage == Stage::kProof) {
        remark(concat(talk.hello.name(), " broke off before it was admitted"));
      }
      return talk.link.open();
    }
    if (talk.stage == Stage::kHello) {
      return take_hello(talk, *message);
    }
    if (message->kind != LauncherWord::kProof) {
      return false;
    }
    if (!machine_proof_is_genuine(message->body, talk.expected_proof)) {
      return refuse(talk, why_no_proof(talk.hello, hello_));
    }
    if (const auto reason = objection_to(talk.hello, hello_)) {
      return refuse(talk, *reason);
    }
    Member& place = members_[index(talk.hello.machine)];
    if (place.link.open()) {
      return refuse(talk,
                    concat("--node-rank ",
                           talk.hello.machine,
                           " is already taken by ",
                           place.hello.host,
                           ", pid ",
                           place.hello.pid,
                           ": give every machine its own"));
    }
    talk.link.send(LauncherWord::kVerdict, pack_verdict({true, ""}));
    place.hello = talk.hello;
    place.link = std::move(talk.link);
    place.link.set_longest_body(kLongestMessage);
    ++admitted_;
    return false;
  }

  bool take_hello(Conversation& talk, const LauncherMessage& message) {
    const auto hello =
        message.kind == LauncherWord::kHello ? unpack_hello(message.body) : std::nullopt;
    if (!hello) {
      remark(concat("a stranger at ", talk.address, " did not behave like a launcher"));
      return false;
    }
    talk.hello = *hello;
    if (!speaks_our_protocol(*hello)) {
      return refuse(talk, "it has another version of Trireme: install the same on every machine");
    }
    talk.stage = Stage::kProof;
    talk.hello_bytes = message.body;
    // A fresh number for each conversation, and nothing about this machine: whoever asks has proven
    // nothing yet.
    const std::string own = fresh_number();
    talk.expected_proof =
        make_machine_proof(ProofOf::kJoiner, talk.hello_bytes, own, options_.secret);
    talk.link.send(
        LauncherWord::kChallenge,
        pack_challenge(
            {own, make_machine_proof(ProofOf::kMachine0, talk.hello_bytes, own, options_.secret)}));
    return true;
  }

  bool refuse(Conversation& talk, const std::string& why) {
    const std::string who =
        talk.stage == Stage::kHello ? concat("a launcher at ", talk.address) : talk.hello.name();
    const std::string message = concat("machine 0 (", hello_.host, ") refused ", who, ": ", why);
    if (remarks_.size() < kMostRemarks) {
      options_.say(message);
    }
    remark(message);
    talk.link.send(LauncherWord::kVerdict, pack_verdict({false, message}));
    return false;
  }

  void remark(const std::string& text) {
    if (remarks_.size() < kMostRemarks) {
      remarks_.push_back(text);
    }
  }

  std::string missing() const {
    std::string text;
    for (int machine = 1; machine < options_.machines; ++machine) {
      if (!members_[index(machine)].link.open()) {
        text += concat(text.empty() ? "" : ", ", machine);
      }
    }
    return text;
  }

  std::string timeout_message() const {
    std::string text = concat("the machines did not meet within ",
                              options_.timeout_seconds(),
                              " s: ",
                              admitted_ + 1,
                              " of ",
                              options_.machines,
                              " reached ",
                              options_.place.text(),
                              ", missing: ",
                              missing(),
                              "; check that each was started with its --node-rank, and that it can "
                              "reach this address and port (firewall)");
    for (const std::string& remark : remarks_) {
      text += "; " + remark;
    }
    return text;
  }

  [[noreturn]] void cancel(const MeetingFailed& failure) {
    tell_members(failure);
    throw MeetingFailed(failure);
  }

  void tell_members(const MeetingFailed& failure) {
    for (Member& member : members_) {
      member.link.send(LauncherWord::kCancelled, pack_cancellation(failure));
      member.link.finish_sending();
    }
    // A connection closed over something unread is reset, and the message might be lost: wait for
    // the others to close theirs.
    const Deadline patience(kTimeToTell);
    const auto is_open = [](const Member& member) { return member.link.open(); };
    while (std::any_of(members_.begin(), members_.end(), is_open) && !patience.passed()) {
      std::vector<pollfd> entries;
      entries.reserve(members_.size());
      for (const Member& member : members_) {
        entries.push_back({member.link.fd(), POLLIN, 0});
      }
      poll(entries.data(), entries.size(), 50);
      for (Member& member : members_) {
        while (member.link.next()) {
        }
      }
    }
  }

  Roster start_everyone() {
    Roster roster;
    roster.job = random_job_name();
    const bool has_secret = !options_.secret.empty();
    roster.token = has_secret ? token_from_secret(options_.secret, roster.job) : random_token();
    members_[0].hello = hello_;
    for (const Member& member : members_) {
      roster.ranks.push_back(member.hello.ranks);
      roster.hosts.push_back(member.hello.host);
    }
    roster.rank0_listener = listen_beside(listener_);
    const int port = port_of(roster.rank0_listener);
    roster.rendezvous = MeetingPlace{options_.place.host, port}.text();
    const std::string start = pack_start(roster, port, !has_secret);
    for (Member& member : members_) {
      member.link.send(LauncherWord::kStart, start);
      roster.links.push_back(std::move(member.link));
    }
    return roster;
  }

  const MeetingOptions& options_;
  Deadline deadline_;
  FileDescriptor listener_;
  MachineHello hello_;
  std::vector<Conversation> talks_;
  AcceptPause pause_;
  std::vector<Member> members_;  // by machine; the first is this one
  int admitted_ = 0;
  std::vector<std::string> remarks_;
  bool said_who_is_missing_ = false;
};

}  // namespace

Roster host_meeting(const MeetingOptions& options) {
  return Host(options).run();
}

}  // namespace trireme::detail
