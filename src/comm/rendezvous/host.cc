#include <algorithm>
#include <cerrno>
#include <optional>

#include <poll.h>
#include <unistd.h>

#include "comm/rendezvous/accept_pause.h"
#include "comm/rendezvous/admission.h"
#include "comm/rendezvous/machine_meeting.h"
#include "comm/rendezvous/remarks.h"
#include "trireme/core/error.h"
#include "trireme/core/index.h"

namespace trireme::detail {
namespace {

constexpr Milliseconds kStrangerPatience{5000};  // for a connection that does not go on talking
constexpr std::size_t kMostComers = 64;          // at once; more wait in the kernel's queue

// Rank 0's side of the meeting: several conversations at once, so that nobody can hold up the
// others by not talking.
class Host {
 public:
  Host(const MachineMeetingOptions& options, std::optional<Listener> listener)
      : options_(options),
        deadline_(options.timeout),
        listener_(std::move(listener)),
        hello_(make_hello(options.identity)),
        members_(index(options.identity.size)) {}

  MachineMeeting run() {
    while (admitted_ + 1 < options_.identity.size) {
      if (deadline_.passed()) {
        throw CommError(CommError::Reason::kRendezvousTimeout, -1, timeout_message());
      }
      options_.look(Milliseconds(0));
      poll_once();
    }
    MachineMeeting meeting;
    meeting.self = hello_;
    meeting.deadline = deadline_;
    members_[0].hello = hello_;
    members_[0].life = open_own_life();
    for (Member& member : members_) {
      meeting.hellos.push_back(member.hello);
      meeting.lives.push_back(std::move(member.life));
      meeting.links.push_back(std::move(member.link));
    }
    return meeting;
  }

 private:
  enum class Stage { kGreeting, kIntroduction };
  struct Conversation {
    UnixLink link;
    Stage stage = Stage::kGreeting;
    Greeting greeting{};
    Challenge challenge{};
    Deadline patience{kStrangerPatience};
  };
  struct Member {
    UnixLink link;
    Hello hello{};
    FileDescriptor life;
  };

  void poll_once() {
    const bool takes_more = talks_.size() < kMostComers && pause_.over();
    std::vector<pollfd> entries{{takes_more ? listener_->fd() : -1, POLLIN, 0}};
    for (const Conversation& talk : talks_) {
      entries.push_back({talk.link.fd(), POLLIN, 0});
    }
    for (const Member& member : members_) {
      // poll skips the negative descriptor of a rank that is not here yet.
      entries.push_back({member.link.valid() ? member.link.fd() : -1, POLLIN, 0});
    }
    poll(entries.data(),
         entries.size(),
         static_cast<int>(std::min<std::int64_t>(deadline_.left().count() + 1, 100)));
    forget_lost_members(entries);
    std::vector<Conversation> open;
    for (std::size_t i = 0; i < talks_.size(); ++i) {
      const bool goes_on =
          entries[1 + i].revents == 0 ? !talks_[i].patience.passed() : listen_to(talks_[i]);
      if (goes_on) {
        open.push_back(std::move(talks_[i]));
      }
    }
    talks_ = std::move(open);
    for (std::size_t turn = 0; turn < kMostComers && talks_.size() < kMostComers && pause_.over();
         ++turn) {
      auto link = listener_->accept();
      if (!link) {
        if (pause_.failed(errno)) {
          remarks_.warn(concat("rank 0 has no file descriptors left for joining ranks (",
                               errno_text(errno),
                               "): raise the limit (ulimit -n)"));
        }
        break;
      }
      // Other users of the machine can reach the socket, and are told nothing.
      if (link->peer().uid != geteuid()) {
        remarks_.warn(concat("rank 0 of ",
                             hello_.size,
                             " (pid ",
                             hello_.pid,
                             ") refused pid ",
                             link->peer().pid,
                             ": it belongs to user ",
                             link->peer().uid,
                             " and rank 0 to user ",
                             geteuid()));
        continue;
      }
      talks_.push_back({std::move(*link)});
    }
  }

  // An admitted rank says nothing until everyone is here: whatever comes means that it is gone.
  void forget_lost_members(const std::vector<pollfd>& entries) {
    const std::size_t first = entries.size() - members_.size();
    for (std::size_t rank = 0; rank < members_.size(); ++rank) {
      if (entries[first + rank].revents != 0) {
        remarks_.add(concat(name_of(members_[rank].hello), " joined and then ended"));
        members_[rank] = {};
        --admitted_;
      }
    }
  }

  // The next message of a conversation; false when the conversation is over.
  bool listen_to(Conversation& talk) {
    const Deadline now(Milliseconds(0));
    if (talk.stage == Stage::kGreeting) {
      if (!talk.link.receive(&talk.greeting, sizeof(talk.greeting), nullptr, now) ||
          !speaks_our_protocol(talk.greeting)) {
        return refuse(talk, nullptr, "it speaks another version of the rendezvous protocol");
      }
      talk.challenge = make_challenge(talk.greeting, options_.identity.token);
      talk.stage = Stage::kIntroduction;
      return talk.link.send(&talk.challenge, sizeof(talk.challenge), {}, now);
    }
    Introduction<Hello> introduction{};
    std::vector<FileDescriptor> fds;
    if (!talk.link.receive(&introduction, sizeof(introduction), &fds, now)) {
      remarks_.add(concat("a process (pid ",
                          talk.link.peer().pid,
                          ") broke off before it proved that it knows the job's token"));
      return false;
    }
    const Hello& hello = introduction.said;
    if (!introduction_is_genuine(
            introduction, talk.greeting, talk.challenge, options_.identity.token)) {
      return refuse(talk, &hello, "it does not know the token of this job (TRIREME_TOKEN)");
    }
    if (const auto reason = objection(hello_, hello)) {
      return refuse(talk, &hello, *reason);
    }
    if (fds.size() != 1) {
      return refuse(talk, &hello, "it sent no handle of its process");
    }
    Member& place = members_[index(hello.rank)];
    if (place.link.valid()) {
      return refuse(talk,
                    &hello,
                    concat("rank ",
                           hello.rank,
                           " is already taken by pid ",
                           place.hello.pid,
                           ": start every rank once"));
    }
    const Verdict admitted{1, {}};
    if (!talk.link.send(&admitted, sizeof(admitted), {}, now)) {
      return false;
    }
    place = {std::move(talk.link), hello, std::move(fds.front())};
    ++admitted_;
    return false;
  }

  // `hello` is null where it has not said who it is.
  bool refuse(Conversation& talk, const Hello* hello, const std::string& why) {
    const std::string who =
        hello == nullptr ? concat("a process (pid ", talk.link.peer().pid, ")") : name_of(*hello);
    const std::string message =
        concat("rank 0 of ", hello_.size, " (pid ", hello_.pid, ") refused ", who, ": ", why);
    remarks_.warn(message);
    const Verdict verdict = refusal(message);
    talk.link.send(&verdict, sizeof(verdict), {}, Deadline(Milliseconds(0)));
    return false;
  }

  std::string timeout_message() const {
    std::string missing;
    for (int rank = 1; rank < options_.identity.size; ++rank) {
      if (!members_[index(rank)].link.valid()) {
        missing += concat(missing.empty() ? "" : ", ", rank);
      }
    }
    const std::string text =
        concat("rendezvous timed out after ",
               deadline_.elapsed_seconds(),
               " s: ",
               admitted_ + 1,
               " of ",
               options_.identity.size,
               " ranks met, missing: ",
               missing,
               "; check that every rank was started with the same job (TRIREME_JOB)");
    return text + remarks_.text();
  }

  const MachineMeetingOptions& options_;
  Deadline deadline_;
  std::optional<Listener> listener_;  // none in a world of one rank
  Hello hello_;
  std::vector<Member> members_;  // by rank; [0] stays without a link
  std::vector<Conversation> talks_;
  AcceptPause pause_;
  Remarks remarks_;
  int admitted_ = 0;
};

}  // namespace

MachineMeeting host_machine(const MachineMeetingOptions& options) {
  if (options.identity.size == 1) {
    return Host(options, std::nullopt).run();
  }
  auto listener = Listener::listen(options.name);
  if (!listener) {
    const auto other = connect_to(options.name);
    throw CommError(CommError::Reason::kRefused,
                    0,
                    concat("rank 0 (pid ",
                           getpid(),
                           ") cannot open the rendezvous of this job: pid ",
                           other ? other->peer().pid : -1,
                           " is already rank 0 of it; start rank 0 once, end the one that is left "
                           "over, or give the new job another name (TRIREME_JOB)"));
  }
  return Host(options, std::move(listener)).run();
}

}  // namespace trireme::detail
