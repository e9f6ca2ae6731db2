#include "comm/rendezvous/net_meeting.h"

#include <algorithm>
#include <cerrno>
#include <thread>

#include <fcntl.h>
#include <poll.h>

#include "comm/rendezvous/accept_pause.h"
#include "comm/rendezvous/packing.h"
#include "comm/rendezvous/remarks.h"
#include "trireme/core/error.h"
#include "trireme/core/index.h"
#include "trireme/core/printable.h"

namespace trireme::detail {
namespace {

constexpr Milliseconds kNetRetryPause{50};
// A stranger that has not been admitted after this is sent away; sooner where others wait for its
// place, since a rank says its next word at once.
constexpr Milliseconds kPatience{5000};
constexpr Milliseconds kPatienceInACrowd{500};

constexpr Milliseconds kTimeToTell{1000};  // the others that a rank is lost
constexpr std::int32_t kNobodyLost = -1;

static_assert(sizeof(Introduction<NetHello>) <= TcpLink::kLongestFromStranger);
static_assert(sizeof(Verdict) <= TcpLink::kLongestFromStranger);

// Rank 0's side: talks to several strangers at once, so that one that stays silent holds nobody up.
class NetHost {
 public:
  NetHost(const NetMeetingOptions& options, const Deadline& deadline)
      : options_(options),
        deadline_(deadline),
        own_greeting_(make_greeting(options.world, options.job)),
        hello_(make_net_hello(options.identity, options.local_rank, options.local_size)),
        links_(index(options.identity.size)),
        members_(index(options.identity.size)) {
    if (options.listener >= 0) {
      own_ = FileDescriptor(fcntl(options.listener, F_DUPFD_CLOEXEC, 0));
    } else if (options.identity.size > 1) {
      const MeetingPlace place = parse_meeting_place(options.place, options.where);
      auto addresses = resolve(place);
      // A machine may know its own name as an address that only it can reach.
      if (options.identity.size != options.local_size && addresses.front().is_loopback()) {
        addresses = resolve({"0.0.0.0", place.port, place.source});
      }
      own_ = listen_at(addresses, place);
    }
    members_[0] = member_of(hello_);
  }

  void run() {
    while (admitted_ + 1 < options_.identity.size) {
      if (deadline_.passed()) {
        throw CommError(CommError::Reason::kRendezvousTimeout, first_missing(), timeout_message());
      }
      wait_for_something();
    }
  }

  std::vector<TcpLink> take_links() { return std::move(links_); }
  std::vector<Member> take_members() { return std::move(members_); }

 private:
  struct Conversation {
    TcpLink link;
    bool challenged = false;
    Greeting greeting{};
    Challenge challenge{};
    Deadline patience{kPatience};
  };

  void wait_for_something() {
    const bool takes_more = talks_.size() < kMostStrangers && pause_.over();
    std::vector<pollfd> entries{{takes_more ? own_.get() : -1, POLLIN, 0}};
    for (const Conversation& talk : talks_) {
      entries.push_back({talk.link.fd(), POLLIN, 0});
    }
    for (const TcpLink& link : links_) {
      entries.push_back({link.valid() ? link.fd() : -1, POLLIN, 0});
    }
    poll(entries.data(),
         entries.size(),
         static_cast<int>(std::min<std::int64_t>(deadline_.left().count() + 1, 200)));
    for (std::size_t rank = 1; rank < links_.size(); ++rank) {
      // An admitted rank says nothing until everyone is here: whatever comes means that it is gone.
      if (entries[1 + talks_.size() + rank].revents != 0) {
        remarks_.add(concat("rank ", rank, " on ", members_[rank].host, " joined and ended"));
        links_[rank] = {};
        --admitted_;
      }
    }
    std::vector<Conversation> open;
    for (Conversation& talk : talks_) {
      if (listen_to(talk)) {
        open.push_back(std::move(talk));
      }
    }
    talks_ = std::move(open);
    while (talks_.size() < kMostStrangers && pause_.over()) {
      FileDescriptor fd = accept_from(own_);
      if (!fd.valid()) {
        if (pause_.failed(errno)) {
          remarks_.warn(concat("rank 0 has no file descriptors left for ranks joining at ",
                               options_.place,
                               " (",
                               errno_text(errno),
                               "): raise the limit (ulimit -n)"));
        }
        break;
      }
      talks_.push_back({.link = TcpLink(std::move(fd))});
    }
  }

  bool has_lost_patience(const Conversation& talk) const {
    const bool is_crowded = talks_.size() >= kMostStrangers;
    return talk.patience.passed() ||
           (is_crowded && talk.patience.elapsed_seconds() * 1000 >= kPatienceInACrowd.count());
  }

  // True while the conversation goes on.
  bool listen_to(Conversation& talk) {
    std::string message;
    switch (talk.link.try_receive(&message)) {
      case TcpLink::State::kNotYet:
        return !has_lost_patience(talk);
      case TcpLink::State::kClosed:
        return false;
      case TcpLink::State::kMessage:
        return talk.challenged ? judge(talk, message) : challenge(talk, message);
    }
    return false;
  }

  bool challenge(Conversation& talk, const std::string& message) {
    if (!TcpLink::read_into(message, &talk.greeting) || !speaks_our_protocol(talk.greeting)) {
      return refuse_stranger(
          talk, concat("it does not speak version ", kProtocol, " of the rendezvous protocol"));
    }
    if (talk.greeting.job != own_greeting_.job) {
      return refuse_stranger(talk, "it belongs to another job (TRIREME_JOB)");
    }
    talk.challenge = make_challenge(talk.greeting, options_.identity.token);
    talk.challenged = true;
    return talk.link.send(TcpLink::bytes_of(talk.challenge), soon());
  }

  bool judge(Conversation& talk, const std::string& message) {
    Introduction<NetHello> introduction{};
    if (!TcpLink::read_into(message, &introduction) ||
        !introduction_is_genuine(
            introduction, talk.greeting, talk.challenge, options_.identity.token)) {
      return refuse_stranger(talk, "it does not know the token of this job (TRIREME_TOKEN)");
    }
    const Hello& hello = introduction.said.hello;
    if (const auto reason = objection(hello_.hello, hello)) {
      return refuse_rank(talk, hello, *reason);
    }
    if (talk.greeting.world > own_greeting_.world) {
      return false;  // it is ahead, and comes again
    }
    if (talk.greeting.world < own_greeting_.world) {
      return refuse_rank(talk,
                         hello,
                         concat("it wants to join world ",
                                talk.greeting.world,
                                " of this job, but rank 0 is waiting for the ranks of world ",
                                own_greeting_.world,
                                ": a rank that was restarted can only join in a new attempt "
                                "(TRIREME_EPOCH) of all ranks"));
    }
    if (links_[index(hello.rank)].valid()) {
      return refuse_rank(talk,
                         hello,
                         concat("rank ",
                                hello.rank,
                                " is already taken by pid ",
                                members_[index(hello.rank)].pid,
                                " on ",
                                members_[index(hello.rank)].host,
                                ": start every rank once"));
    }
    const Verdict admitted{1, {}};
    if (!talk.link.send(TcpLink::bytes_of(admitted), soon())) {
      return false;
    }
    talk.link.set_longest(TcpLink::kLongestFromMember);
    members_[index(hello.rank)] = member_of(introduction.said);
    links_[index(hello.rank)] = std::move(talk.link);
    ++admitted_;
    return false;
  }

  std::string own_name() const {
    return concat("rank 0 of ", hello_.hello.size, " (pid ", hello_.hello.pid, ")");
  }

  // Who has not proven the token is told why, and nothing about this process; nor is anything that
  // it said repeated here.
  bool refuse_stranger(Conversation& talk, const std::string& why) {
    remarks_.warn(concat(own_name(), " refused a process at ", talk.link.peer(), ": ", why));
    talk.link.send(TcpLink::bytes_of(refusal(why)), soon());
    return false;
  }

  bool refuse_rank(Conversation& talk, const Hello& hello, const std::string& why) {
    const std::string message =
        concat(own_name(), " refused ", name_of(hello), " at ", talk.link.peer(), ": ", why);
    remarks_.warn(message);
    talk.link.send(TcpLink::bytes_of(refusal(message)), soon());
    return false;
  }

  static Deadline soon() { return Deadline(Milliseconds(1000)); }

  int first_missing() const {
    for (int rank = 1; rank < options_.identity.size; ++rank) {
      if (!links_[index(rank)].valid()) {
        return rank;
      }
    }
    return -1;
  }

  std::string timeout_message() const {
    std::string missing;
    for (int rank = 1; rank < options_.identity.size; ++rank) {
      if (!links_[index(rank)].valid()) {
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
               " ranks reached ",
               options_.place,
               ", missing: ",
               missing,
               "; check that the other machines were started, and that a firewall "
               "lets them through to this port");
    return text + remarks_.text();
  }

  const NetMeetingOptions& options_;
  const Deadline& deadline_;
  Greeting own_greeting_;
  NetHello hello_;
  FileDescriptor own_;  // listens
  AcceptPause pause_;
  std::vector<TcpLink> links_;  // by rank; [0] stays empty
  std::vector<Member> members_;
  std::vector<Conversation> talks_;
  Remarks remarks_;
  int admitted_ = 0;
};

// The refusal of somebody who has not proven to be rank 0: his words, and whose they are.
CommError refused_by_a_stranger(const std::string& self,
                                const std::string& place,
                                const Verdict& verdict) {
  return {
      CommError::Reason::kRefused,
      0,
      concat(self,
             " was refused by what listens at ",
             place,
             ": ",
             refusal_text(verdict),
             "; give the same TRIREME_JOB and TRIREME_TOKEN, and the same version of Trireme, to "
             "every rank")};
}

}  // namespace

NetMeeting::NetMeeting(const NetMeetingOptions& options)
    : rank_(options.identity.rank), size_(options.identity.size), deadline_(options.timeout) {
  if (rank_ == 0) {
    host(options);
  } else {
    join(options);
  }
  number_machines(members_);
}

void NetMeeting::host(const NetMeetingOptions& options) {
  NetHost side(options, deadline_);
  side.run();
  links_ = side.take_links();
  members_ = side.take_members();
  tell_all(pack_members(members_));
}

void NetMeeting::join(const NetMeetingOptions& options) {
  const MeetingPlace place = parse_meeting_place(options.place, options.where);
  const NetHello hello = make_net_hello(options.identity, options.local_rank, options.local_size);
  const std::string self = name_of(hello.hello);
  const std::string& token = options.identity.token;
  std::string why = "nothing listens there";
  for (;;) {
    if (deadline_.passed()) {
      throw CommError(CommError::Reason::kRendezvousTimeout,
                      0,
                      concat("rendezvous timed out after ",
                             deadline_.elapsed_seconds(),
                             " s: ",
                             self,
                             " could not join rank 0 at ",
                             options.place,
                             " (",
                             why,
                             "); check that rank 0 is running, that the address belongs to its "
                             "machine, and that a firewall lets this machine through to the port"));
    }
    auto link = try_connect(place, deadline_, &why);
    if (!link) {
      std::this_thread::sleep_for(kNetRetryPause);
      continue;
    }
    const Greeting greeting = make_greeting(options.world, options.job);
    std::string message;
    if (!link->send(TcpLink::bytes_of(greeting), deadline_) ||
        !link->receive(&message, deadline_)) {
      why = "it closed the connection without answering";
      std::this_thread::sleep_for(kNetRetryPause);
      continue;
    }
    Challenge challenge{};
    Verdict verdict{};
    if (TcpLink::read_into(message, &verdict)) {  // refused without being asked
      throw refused_by_a_stranger(self, options.place, verdict);
    }
    if (!TcpLink::read_into(message, &challenge)) {
      throw CommError(CommError::Reason::kRefused,
                      0,
                      concat(self,
                             ": what listens at ",
                             options.place,
                             " is not rank 0 of this version of Trireme"));
    }
    // One that has not proven itself learns nothing about this process, and gets no proof to take
    // elsewhere. It still gets an answer: the real rank 0 of another token says then that it
    // refuses this one, and both sides know.
    const bool is_rank_0 = challenge_is_genuine(challenge, greeting, token);
    const Introduction<NetHello> introduction =
        is_rank_0 ? introduce(greeting, challenge, hello, token) : Introduction<NetHello>{};
    if (!link->send(TcpLink::bytes_of(introduction), deadline_) ||
        !link->receive(&message, deadline_) || !TcpLink::read_into(message, &verdict)) {
      why = "it broke off while this rank was being admitted: it may be waiting for another world";
      std::this_thread::sleep_for(kNetRetryPause);
      continue;
    }
    if (!is_rank_0 && verdict.admitted == 0) {
      throw refused_by_a_stranger(self, options.place, verdict);
    }
    if (verdict.admitted == 0) {
      throw CommError(CommError::Reason::kRefused, 0, refusal_text(verdict));
    }
    if (!is_rank_0) {
      throw CommError(CommError::Reason::kRefused,
                      0,
                      concat(self,
                             " does not trust what listens at ",
                             options.place,
                             " as rank 0: it does not know the token of this job (TRIREME_TOKEN)"));
    }
    link->set_longest(TcpLink::kLongestFromMember);
    links_.push_back(std::move(*link));
    auto members = unpack_members(hear());
    if (!members || members->size() != index(size_)) {
      broken(0, "rank 0 sent something else than the ranks of the world");
    }
    members_ = std::move(*members);
    return;
  }
}

void NetMeeting::tell_all(const std::string& message) {
  for (int rank = 1; rank < size_; ++rank) {
    if (!links_[index(rank)].send(TcpLink::bytes_of(kNobodyLost) + message, deadline_)) {
      lost(rank);
    }
  }
}

std::string NetMeeting::hear() {
  std::string message;
  if (!links_[0].receive(&message, deadline_) || message.size() < sizeof(kNobodyLost)) {
    broken(0, "lost rank 0");
  }
  std::int32_t lost_rank = kNobodyLost;
  TcpLink::read_into(message.substr(0, sizeof(lost_rank)), &lost_rank);
  message.erase(0, sizeof(lost_rank));
  if (lost_rank != kNobodyLost) {
    broken(lost_rank, concat(printable(message), " (found by rank 0)"));
  }
  return message;
}

void NetMeeting::lost(int rank) {
  const std::string what = concat("lost rank ", rank, " on ", members_[index(rank)].host);
  for (int other = 1; other < size_; ++other) {
    if (other != rank) {
      links_[index(other)].send(TcpLink::bytes_of(std::int32_t{rank}) + what,
                                Deadline(kTimeToTell));
    }
  }
  broken(rank, what);
}

void NetMeeting::broken(int rank, const std::string& what) const {
  throw CommError(
      deadline_.passed() ? CommError::Reason::kRendezvousTimeout : CommError::Reason::kPeerDied,
      rank,
      concat("rank ", rank_, " of ", size_, ": ", what, " during the rendezvous"));
}

std::vector<std::string> NetMeeting::exchange(const std::string& mine) {
  std::vector<std::string> parts(index(size_));
  parts[index(rank_)] = mine;
  if (rank_ != 0) {
    links_[0].send(mine, deadline_);  // where it has ended, it may have said why
    parts = Unpacker(hear()).texts();
    TRIREME_ASSERT(parts.size() == index(size_), "an exchange has ", parts.size(), " parts");
    return parts;
  }
  for (int rank = 1; rank < size_; ++rank) {
    if (!links_[index(rank)].receive(&parts[index(rank)], deadline_)) {
      lost(rank);
    }
  }
  tell_all(Packer().texts(parts).take());
  return parts;
}

}  // namespace trireme::detail
