#include "comm/rendezvous/net_meeting.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <thread>

#include <fcntl.h>
#include <poll.h>
#include <sodium.h>
#include <unistd.h>

#include "trireme/core/error.h"
#include "trireme/core/index.h"
#include "trireme/core/log.h"

namespace trireme::detail {
namespace {

constexpr Milliseconds kNetRetryPause{50};
// A comer that says nothing is sent away after this.
constexpr Milliseconds kPatience{5000};

// Lists of byte strings in one message.
std::string pack_list(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) {
    text += TcpChannel::bytes_of(static_cast<std::uint32_t>(part.size())) + part;
  }
  return text;
}

std::vector<std::string> unpack_list(const std::string& text) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; at + sizeof(std::uint32_t) <= text.size();) {
    std::uint32_t length = 0;
    TcpChannel::read_into(text.substr(at, sizeof(length)), &length);
    parts.push_back(text.substr(at + sizeof(length), length));
    at += sizeof(length) + length;
  }
  return parts;
}

// Rank 0's side: talks to several comers at once, so that one that stays silent holds nobody up.
class NetHost {
 public:
  NetHost(const NetMeetingOptions& options, const Deadline& deadline)
      : options_(options),
        deadline_(deadline),
        hello_(make_net_hello(options.identity, options.world, options.job)),
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
    members_[0] = member_of(hello_.hello, make_net_proof(options.local_rank, options.local_size));
  }

  void run() {
    while (admitted_ + 1 < options_.identity.size) {
      if (deadline_.passed()) {
        throw CommError(CommError::Reason::kRendezvousTimeout, first_missing(), timeout_message());
      }
      wait_for_something();
    }
  }

  std::vector<TcpChannel> take_links() { return std::move(links_); }
  std::vector<Member> take_members() { return std::move(members_); }

 private:
  struct Conversation {
    TcpChannel channel;
    bool challenged = false;
    NetHello hello{};
    Challenge challenge{};
    Deadline patience{kPatience};
  };

  void wait_for_something() {
    std::vector<pollfd> entries{{own_.get(), POLLIN, 0}};
    for (const Conversation& talk : talks_) {
      entries.push_back({talk.channel.fd(), POLLIN, 0});
    }
    for (const TcpChannel& link : links_) {
      entries.push_back({link.valid() ? link.fd() : -1, POLLIN, 0});
    }
    poll(entries.data(),
         entries.size(),
         static_cast<int>(std::min<std::int64_t>(deadline_.left().count() + 1, 200)));
    for (std::size_t rank = 1; rank < links_.size(); ++rank) {
      // An admitted rank says nothing until everyone is here: whatever comes means that it is gone.
      if (entries[1 + talks_.size() + rank].revents != 0) {
        remarks_.push_back(concat("rank ", rank, " on ", members_[rank].host, " joined and ended"));
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
    for (FileDescriptor fd = accept_from(own_); fd.valid(); fd = accept_from(own_)) {
      talks_.push_back({.channel = TcpChannel(std::move(fd))});
    }
  }

  // True while the conversation goes on.
  bool listen_to(Conversation& talk) {
    std::string message;
    switch (talk.channel.try_receive(&message)) {
      case TcpChannel::State::kNotYet:
        return !talk.patience.passed();
      case TcpChannel::State::kClosed:
        return false;
      case TcpChannel::State::kMessage:
        return talk.challenged ? judge(talk, message) : challenge(talk, message);
    }
    return false;
  }

  bool challenge(Conversation& talk, const std::string& message) {
    if (!TcpChannel::read_into(message, &talk.hello) ||
        std::memcmp(talk.hello.hello.magic, hello_.hello.magic, sizeof(hello_.hello.magic)) != 0 ||
        talk.hello.hello.protocol != kProtocol) {
      return refuse(talk, "it speaks another version of the rendezvous protocol");
    }
    if (std::memcmp(talk.hello.job, hello_.job, sizeof(hello_.job)) != 0) {
      return refuse(talk, "it belongs to another job (TRIREME_JOB)");
    }
    if (talk.hello.world > hello_.world) {
      return false;  // it is ahead, and comes again
    }
    talk.challenge = make_challenge(hello_.hello, talk.hello.hello, options_.identity.token);
    talk.challenged = true;
    return talk.channel.send(TcpChannel::bytes_of(talk.challenge), soon());
  }

  bool judge(Conversation& talk, const std::string& message) {
    NetProof proof{};
    const Hello& hello = talk.hello.hello;
    if (!TcpChannel::read_into(message, &proof) ||
        !proof_is_genuine(proof.proof, talk.challenge, hello, options_.identity.token)) {
      return refuse(talk, "it does not know the token of this job (TRIREME_TOKEN)");
    }
    if (const auto reason = objection(hello_.hello, hello)) {
      return refuse(talk, *reason);
    }
    if (links_[index(hello.rank)].valid()) {
      return refuse(talk,
                    concat("rank ",
                           hello.rank,
                           " is already taken by pid ",
                           members_[index(hello.rank)].pid,
                           " on ",
                           members_[index(hello.rank)].host,
                           ": start every rank once"));
    }
    const Verdict admitted{1, {}};
    if (!talk.channel.send(TcpChannel::bytes_of(admitted), soon())) {
      return false;
    }
    members_[index(hello.rank)] = member_of(hello, proof);
    links_[index(hello.rank)] = std::move(talk.channel);
    ++admitted_;
    return false;
  }

  bool refuse(Conversation& talk, const std::string& why) {
    const std::string who = talk.challenged
                                ? concat(name_of(talk.hello.hello), " at ", talk.channel.peer())
                                : concat("a process at ", talk.channel.peer());
    const std::string message = concat(
        "rank 0 of ", hello_.hello.size, " (pid ", hello_.hello.pid, ") refused ", who, ": ", why);
    log(LogLevel::kWarning, message);
    remarks_.push_back(message);
    Verdict verdict{};
    message.copy(verdict.message, sizeof(verdict.message) - 1);
    if (!talk.challenged) {
      // The other side expects a challenge first: one that it cannot answer brings it to the
      // verdict.
      talk.challenge = make_challenge(hello_.hello, talk.hello.hello, "");
      talk.channel.send(TcpChannel::bytes_of(talk.challenge), soon());
    }
    talk.channel.send(TcpChannel::bytes_of(verdict), soon());
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
    std::string text = concat("rendezvous timed out after ",
                              deadline_.elapsed_seconds(),
                              " s: ",
                              admitted_ + 1,
                              " of ",
                              options_.identity.size,
                              " ranks came to ",
                              options_.place,
                              ", missing: ",
                              missing,
                              "; check that the other machines were started, and that a firewall "
                              "lets them through to this port");
    for (const std::string& remark : remarks_) {
      text += "; " + remark;
    }
    return text;
  }

  const NetMeetingOptions& options_;
  const Deadline& deadline_;
  NetHello hello_;
  FileDescriptor own_;             // listens
  std::vector<TcpChannel> links_;  // by rank; [0] stays empty
  std::vector<Member> members_;
  std::vector<Conversation> talks_;
  std::vector<std::string> remarks_;
  int admitted_ = 0;
};

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
  const std::string everyone = pack_members(members_);
  for (int rank = 1; rank < size_; ++rank) {
    if (!links_[index(rank)].send(everyone, deadline_)) {
      broken(concat("lost rank ", rank, " on ", members_[index(rank)].host));
    }
  }
}

void NetMeeting::join(const NetMeetingOptions& options) {
  const MeetingPlace place = parse_meeting_place(options.place, options.where);
  const NetHello hello = make_net_hello(options.identity, options.world, options.job);
  const std::string self = name_of(hello.hello);
  std::string why = "nobody listens there";
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
                             "); check that rank 0 runs, that the address is one of its machine's, "
                             "and that a firewall lets this machine through to the port"));
    }
    auto channel = try_connect(place, deadline_, &why);
    if (!channel) {
      std::this_thread::sleep_for(kNetRetryPause);
      continue;
    }
    std::string message;
    Challenge challenge{};
    if (!channel->send(TcpChannel::bytes_of(hello), deadline_) ||
        !channel->receive(&message, deadline_)) {
      why = "it closed the connection without a word";
      std::this_thread::sleep_for(kNetRetryPause);
      continue;  // rank 0 may still be busy with an earlier world
    }
    if (!TcpChannel::read_into(message, &challenge)) {
      throw CommError(CommError::Reason::kRefused,
                      0,
                      concat(self,
                             ": what listens at ",
                             options.place,
                             " is no rank 0 of this version of Trireme"));
    }
    NetProof proof = make_net_proof(options.local_rank, options.local_size);
    proof.proof = make_proof(challenge, hello.hello, options.identity.token);
    Verdict verdict{};
    if (!channel->send(TcpChannel::bytes_of(proof), deadline_) ||
        !channel->receive(&message, deadline_) || !TcpChannel::read_into(message, &verdict)) {
      why = "it broke off while this rank was being admitted";
      std::this_thread::sleep_for(kNetRetryPause);
      continue;
    }
    if (verdict.admitted == 0) {
      throw CommError(
          CommError::Reason::kRefused,
          0,
          std::string(verdict.message, strnlen(verdict.message, sizeof(verdict.message))));
    }
    if (!challenge_is_genuine(challenge, hello.hello, options.identity.token)) {
      throw CommError(CommError::Reason::kRefused,
                      0,
                      concat(self,
                             " does not trust what listens at ",
                             options.place,
                             " as rank 0: it does not know the token of this job (TRIREME_TOKEN)"));
    }
    std::string everyone;
    if (!channel->receive(&everyone, deadline_)) {
      if (deadline_.passed()) {
        continue;
      }
      throw CommError(
          CommError::Reason::kPeerDied,
          0,
          concat(self, " was admitted, but rank 0 ended before the world was complete"));
    }
    members_ = unpack_members(everyone);
    links_.push_back(std::move(*channel));
    return;
  }
}

void NetMeeting::broken(const std::string& what) const {
  throw CommError(
      deadline_.passed() ? CommError::Reason::kRendezvousTimeout : CommError::Reason::kPeerDied,
      -1,
      concat("rank ", rank_, " of ", size_, ": ", what, " during the rendezvous"));
}

std::vector<std::string> NetMeeting::exchange(const std::string& mine) {
  std::vector<std::string> parts(index(size_));
  parts[index(rank_)] = mine;
  if (rank_ != 0) {
    std::string all;
    if (!links_[0].send(mine, deadline_) || !links_[0].receive(&all, deadline_)) {
      broken("lost rank 0");
    }
    parts = unpack_list(all);
    TRIREME_ASSERT(parts.size() == index(size_), "an exchange has ", parts.size(), " parts");
    return parts;
  }
  for (int rank = 1; rank < size_; ++rank) {
    if (!links_[index(rank)].receive(&parts[index(rank)], deadline_)) {
      broken(concat("lost rank ", rank, " on ", members_[index(rank)].host));
    }
  }
  const std::string all = pack_list(parts);
  for (int rank = 1; rank < size_; ++rank) {
    if (!links_[index(rank)].send(all, deadline_)) {
      broken(concat("lost rank ", rank, " on ", members_[index(rank)].host));
    }
  }
  return parts;
}

}  // namespace trireme::detail
