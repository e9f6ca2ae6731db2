#include <algorithm>
#include <cerrno>

#include <poll.h>

#include "launch/fleet_admission.h"
#include "launch/fleet_meeting.h"
#include "launch/job_setup.h"
#include "trireme/launch/launcher.h"

namespace trireme::detail {
namespace {

constexpr Milliseconds kRetryPause{100};
constexpr Milliseconds kConnectPatience{3000};  // for one address: a firewall may swallow it all
constexpr Milliseconds kAnswerPatience{5000};
constexpr Milliseconds kTimeToSayUnanswered{5000};  // before saying that machine 0 does not answer
// Machine 0 knows who is missing: its word is better than ours, when it comes in time.
constexpr Milliseconds kGraceForMachine0{2000};

// The side of every machine but 0.
class Joiner {
 public:
  explicit Joiner(const MeetingOptions& options)
      : options_(options),
        deadline_(options.timeout),
        grace_(options.timeout + kGraceForMachine0) {}

  Roster run() {
    for (;;) {
      if (connect() && be_admitted()) {
        return wait_for_start();
      }
      link_.close();
      say_once();
      if (deadline_.passed()) {
        throw MeetingFailed(kExitRendezvousTimedOut,
                            concat("machine 0 did not answer at ",
                                   options_.place.text(),
                                   " in ",
                                   options_.timeout_seconds(),
                                   " s: ",
                                   trouble_,
                                   "; check that --node-rank 0 was started there, and that this "
                                   "machine can reach its address and port (firewall)"));
      }
      wait_for(-1, 0, Deadline(std::min(kRetryPause, deadline_.left())));
    }
  }

 private:
  // Waits for the descriptor; false when the deadline passed. A signal ends it all.
  bool wait_for(int fd, short events, const Deadline& deadline) const {
    for (;;) {
      pollfd entries[] = {{options_.signals->fd(), POLLIN, 0}, {fd, events, 0}};
      poll(entries, 2, static_cast<int>(std::min<std::int64_t>(deadline.left().count() + 1, 1000)));
      if (const int number = take_ending_signal(*options_.signals)) {
        throw stopped_by_signal(number);
      }
      if (entries[1].revents != 0) {
        return true;
      }
      if (deadline.passed()) {
        return false;
      }
    }
  }

  bool connect() {
    for (const SocketAddress& address : options_.addresses) {
      FileDescriptor fd = begin_connecting(address);
      int error = fd.valid() ? 0 : errno;
      if (fd.valid()) {
        const Deadline patience(std::min(kConnectPatience, deadline_.left()));
        error = wait_for(fd.get(), POLLOUT, patience) ? connecting_result(fd) : ETIMEDOUT;
      }
      if (error == 0) {
        link_ = LauncherLink(std::move(fd), kLongestFromStranger);
        return true;
      }
      trouble_ = errno_text(error);
    }
    return false;
  }

  // The next message; nothing when the connection ended or nothing came in time.
  std::optional<LauncherMessage> receive(const Deadline& deadline) {
    while (link_.open()) {
      if (auto message = link_.next()) {
        return message;
      }
      if (link_.open() && !wait_for(link_.fd(), link_.events(), deadline)) {
        return std::nullopt;
      }
      link_.flush();
    }
    return std::nullopt;
  }

  // False when machine 0 did not go through with it: to be tried again.
  bool be_admitted() {
    const MachineHello hello = make_machine_hello(
        options_.machine, options_.machines, options_.ranks, !options_.secret.empty());
    const std::string hello_bytes = pack_hello(hello);
    link_.send(LauncherWord::kHello, hello_bytes);
    const auto challenge = ask(LauncherWord::kChallenge, unpack_challenge);
    if (!challenge) {
      return false;
    }
    // Prove first, even to a host that has not proven itself: a proof tells it nothing, and the
    // refusal it sends back then names both sides.
    link_.send(
        LauncherWord::kProof,
        make_machine_proof(ProofOf::kJoiner, hello_bytes, challenge->number, options_.secret));
    const auto verdict = ask(LauncherWord::kVerdict, unpack_verdict);
    if (!verdict) {
      return false;
    }
    TRIREME_CHECK(machine_proof_is_genuine(
                      challenge->proof,
                      make_machine_proof(
                          ProofOf::kMachine0, hello_bytes, challenge->number, options_.secret)),
                  hello.name(),
                  " does not trust what answers at ",
                  options_.place.text(),
                  ": it does not know the token of this job (TRIREME_TOKEN, --token-file)");
    link_.set_longest_body(kLongestMessage);
    return true;
  }

  // The answer of this kind. A refusal, at whichever point it comes, is the end.
  template <class T>
  std::optional<T> ask(LauncherWord kind, std::optional<T> (*unpack)(const std::string&)) {
    const auto message = receive(Deadline(std::min(kAnswerPatience, deadline_.left())));
    if (!message) {
      TRIREME_CHECK(link_.why_closed().empty() || link_.open(), not_a_launcher());
      trouble_ = link_.open() ? "it accepts connections but says nothing"
                              : "it closed the connection during the admission";
      return std::nullopt;
    }
    if (message->kind == LauncherWord::kVerdict) {
      const auto verdict = unpack_verdict(message->body);
      TRIREME_CHECK(verdict, not_a_launcher());
      TRIREME_CHECK(verdict->admitted, verdict->message);
    }
    auto answer = message->kind == kind ? unpack(message->body) : std::nullopt;
    TRIREME_CHECK(answer, not_a_launcher());
    return answer;
  }

  std::string not_a_launcher() const {
    return concat("what answers at ",
                  options_.place.text(),
                  " is not the launcher of machine 0, or is one of another version of Trireme: "
                  "check --rendezvous, and install the same version on every machine");
  }

  Roster wait_for_start() {
    const auto message = receive(grace_);
    if (!message && link_.open()) {
      throw MeetingFailed(kExitRendezvousTimedOut,
                          concat("machine 0 at ",
                                 options_.place.text(),
                                 " admitted this machine, but the others did not join within ",
                                 options_.timeout_seconds(),
                                 " s"));
    }
    if (!message) {
      throw MeetingFailed(
          kExitRankFailed,
          concat("machine 0 at ",
                 options_.place.text(),
                 " is gone: its launcher was killed or the machine went down, before "
                 "the job began"));
    }
    if (message->kind == LauncherWord::kCancelled) {
      throw unpack_cancellation(message->body);
    }
    Roster roster;
    int port = 0;
    TRIREME_CHECK(message->kind == LauncherWord::kStart &&
                      unpack_start(message->body, &roster, &port) &&
                      roster.ranks.size() == static_cast<std::size_t>(options_.machines),
                  not_a_launcher());
    roster.machine = options_.machine;
    if (!options_.secret.empty()) {
      roster.token = token_from_secret(options_.secret, roster.job);
    }
    // This machine has just reached machine 0 by this name.
    roster.rendezvous = MeetingPlace{options_.place.host, port}.text();
    roster.links.resize(roster.ranks.size());
    roster.links[0] = std::move(link_);
    return roster;
  }

  void say_once() {
    if (!said_ && deadline_.elapsed_seconds() * 1000 >= kTimeToSayUnanswered.count() &&
        !deadline_.passed()) {
      said_ = true;
      options_.say(concat("machine 0 does not answer at ",
                          options_.place.text(),
                          " yet (",
                          trouble_,
                          "); trying for ",
                          options_.timeout_seconds(),
                          " s in all"));
    }
  }

  const MeetingOptions& options_;
  Deadline deadline_;
  Deadline grace_;
  LauncherLink link_;
  std::string trouble_ = "nothing listens there";
  bool said_ = false;
};

}  // namespace

Roster join_meeting(const MeetingOptions& options) {
  return Joiner(options).run();
}

}  // namespace trireme::detail
