#include "comm/rendezvous/net_meeting.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

#include <fcntl.h>
#include <poll.h>
#include <sodium.h>
#include <sys/stat.h>
#include <unistd.h>

#include "trireme/core/error.h"
#include "trireme/core/log.h"

namespace trireme::detail {
namespace {

constexpr Milliseconds kRetryPause{50};
// A comer that says nothing is sent away after this.
constexpr Milliseconds kPatience{5000};

std::size_t index(int rank) {
  return static_cast<std::size_t>(rank);
}

// The first message of a comer.
struct NetHello {
  Hello hello;
  std::uint32_t world;
  std::uint8_t job[crypto_hash_sha256_BYTES];
};

// Its last: the proof, and where it is.
struct NetProof {
  Proof proof;
  std::int32_t local_rank;
  std::int32_t local_size;
  char host[64];
  char kernel[64];
  char network[64];
};

template <std::size_t kSize>
void copy_text(char (&to)[kSize], const std::string& from) {
  std::memset(to, 0, kSize);
  from.copy(to, kSize - 1);
}

template <std::size_t kSize>
std::string text_of(const char (&from)[kSize]) {
  return {from, strnlen(from, kSize)};
}

std::string host_name() {
  char name[64] = {};
  gethostname(name, sizeof(name) - 1);
  return name;
}

std::string kernel_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

// Network namespaces of one host are machines of their own: nothing but the network connects them.
std::string network_id() {
  struct stat status {};
  return stat("/proc/self/ns/net", &status) == 0 ? std::to_string(status.st_ino) : "";
}

NetProof make_net_proof(const NetMeetingOptions& options) {
  NetProof proof{};
  proof.local_rank = options.local_rank;
  proof.local_size = options.local_size;
  copy_text(proof.host, host_name());
  copy_text(proof.kernel, kernel_id());
  copy_text(proof.network, network_id());
  return proof;
}

NetHello make_net_hello(const NetMeetingOptions& options) {
  NetHello hello{};
  hello.hello = make_hello(options.identity);
  hello.world = static_cast<std::uint32_t>(options.world);
  crypto_hash_sha256(
      hello.job, reinterpret_cast<const unsigned char*>(options.job.data()), options.job.size());
  return hello;
}

Member member_of(const Hello& hello, const NetProof& proof) {
  Member member;
  member.rank = hello.rank;
  member.pid = hello.pid;
  member.local_rank = proof.local_rank;
  member.local_size = proof.local_size;
  member.host = text_of(proof.host);
  member.kernel = text_of(proof.kernel);
  member.network = text_of(proof.network);
  std::copy(std::begin(hello.cpus), std::end(hello.cpus), member.cpus.begin());
  return member;
}

// Members as bytes and back.
struct PackedMember {
  std::int32_t rank, pid, local_rank, local_size;
  char host[64], kernel[64], network[64];
  std::array<std::uint64_t, 16> cpus;
};

std::string pack(const std::vector<Member>& members) {
  std::string text;
  for (const Member& member : members) {
    PackedMember packed{};
    packed.rank = member.rank;
    packed.pid = member.pid;
    packed.local_rank = member.local_rank;
    packed.local_size = member.local_size;
    packed.cpus = member.cpus;
    copy_text(packed.host, member.host);
    copy_text(packed.kernel, member.kernel);
    copy_text(packed.network, member.network);
    text += TcpChannel::bytes_of(packed);
  }
  return text;
}

std::vector<Member> unpack(const std::string& text) {
  std::vector<Member> members;
  for (std::size_t at = 0; at + sizeof(PackedMember) <= text.size(); at += sizeof(PackedMember)) {
    PackedMember packed{};
    TcpChannel::read_into(text.substr(at, sizeof(packed)), &packed);
    Member member;
    member.rank = packed.rank;
    member.pid = packed.pid;
    member.local_rank = packed.local_rank;
    member.local_size = packed.local_size;
    member.host = text_of(packed.host);
    member.kernel = text_of(packed.kernel);
    member.network = text_of(packed.network);
    member.cpus = packed.cpus;
    members.push_back(std::move(member));
  }
  return members;
}

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
class Host {
 public:
  Host(const NetMeetingOptions& options, const Deadline& deadline)
      : options_(options),
        deadline_(deadline),
        hello_(make_net_hello(options)),
        links_(index(options.identity.size)),
        members_(index(options.identity.size)) {
    if (options.listener >= 0) {
      own_ = FileDescriptor(fcntl(options.listener, F_DUPFD_CLOEXEC, 0));
    } else {
      const MeetingPlace place = parse_meeting_place(options.place, options.where);
      auto addresses = resolve(place);
      // A machine may know its own name as an address that only it can reach.
      if (options.identity.size != options.local_size && addresses.front().is_loopback()) {
        addresses = resolve({"0.0.0.0", place.port, place.source});
      }
      own_ = listen_at(addresses, place);
    }
    members_[0] = member_of(hello_.hello, make_net_proof(options));
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

void number_machines(std::vector<Member>& members);

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
  Host side(options, deadline_);
  side.run();
  links_ = side.take_links();
  members_ = side.take_members();
  const std::string everyone = pack(members_);
  for (int rank = 1; rank < size_; ++rank) {
    if (!links_[index(rank)].send(everyone, deadline_)) {
      broken(concat("lost rank ", rank, " on ", members_[index(rank)].host));
    }
  }
}

void NetMeeting::join(const NetMeetingOptions& options) {
  const MeetingPlace place = parse_meeting_place(options.place, options.where);
  const NetHello hello = make_net_hello(options);
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
      std::this_thread::sleep_for(kRetryPause);
      continue;
    }
    std::string message;
    Challenge challenge{};
    if (!channel->send(TcpChannel::bytes_of(hello), deadline_) ||
        !channel->receive(&message, deadline_)) {
      why = "it closed the connection without a word";
      std::this_thread::sleep_for(kRetryPause);
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
    NetProof proof = make_net_proof(options);
    proof.proof = make_proof(challenge, hello.hello, options.identity.token);
    Verdict verdict{};
    if (!channel->send(TcpChannel::bytes_of(proof), deadline_) ||
        !channel->receive(&message, deadline_) || !TcpChannel::read_into(message, &verdict)) {
      why = "it broke off while this rank was being admitted";
      std::this_thread::sleep_for(kRetryPause);
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
    members_ = unpack(everyone);
    links_.push_back(std::move(*channel));
    return;
  }
}

namespace {

void number_machines(std::vector<Member>& members) {
  // A machine is the ranks that its launcher counts together: consecutive, local rank 0 first.
  int node = -1;
  for (Member& member : members) {
    if (member.local_rank == 0) {
      ++node;
    }
    member.node = node;
  }
  int next = 0;
  for (const Member& member : members) {
    const int expected = next;
    next = next + 1 == member.local_size ? 0 : next + 1;
    TRIREME_CHECK(member.local_rank == expected && member.local_rank < member.local_size,
                  "rank ",
                  member.rank,
                  " on ",
                  member.host,
                  " is local rank ",
                  member.local_rank,
                  " of ",
                  member.local_size,
                  ", expected local rank ",
                  expected,
                  ": the ranks of a machine must follow each other (mpirun --map-by slot, srun "
                  "--distribution=block)");
  }
}

// A struct from one rank to another, waited for.
class Pipe {
 public:
  Pipe(Transport& transport, const Deadline& deadline)
      : transport_(transport), deadline_(deadline) {}

  void send(int to, const std::string& message) {
    finish(transport_.send(to,
                           kTag,
                           reinterpret_cast<const std::byte*>(message.data()),
                           message.size(),
                           Transport::Length::kUpTo),
           to);
  }
  std::string receive(int from, std::size_t bytes) {
    std::string message(bytes, '\0');
    finish(transport_.receive(from,
                              kTag,
                              reinterpret_cast<std::byte*>(message.data()),
                              bytes,
                              Transport::Length::kUpTo),
           from);
    return message;
  }

 private:
  static constexpr std::uint32_t kTag = Transport::kTags - 1;

  void finish(Ticket ticket, int peer) {
    while (!transport_.finished(ticket)) {
      if (!transport_.progress()) {
        transport_.rest(Milliseconds(1));
      }
      if (deadline_.passed() || transport_.lost(peer)) {
        throw CommError(CommError::Reason::kRendezvousTimeout,
                        peer,
                        concat("rank ",
                               transport_.rank(),
                               " of ",
                               transport_.size(),
                               ": rank ",
                               peer,
                               " did not answer during the rendezvous through ",
                               transport_.description()));
      }
    }
  }

  Transport& transport_;
  const Deadline& deadline_;
};

}  // namespace

std::vector<Member> meet_through(Transport& transport, const NetMeetingOptions& options) {
  const Deadline deadline(options.timeout);
  Pipe pipe(transport, deadline);
  const NetHello mine = make_net_hello(options);
  std::vector<Member> members(index(transport.size()));
  members[index(transport.rank())] = member_of(mine.hello, make_net_proof(options));
  if (transport.rank() != 0) {
    pipe.send(0, TcpChannel::bytes_of(mine));
    Challenge challenge{};
    TcpChannel::read_into(pipe.receive(0, sizeof(challenge)), &challenge);
    NetProof proof = make_net_proof(options);
    proof.proof = make_proof(challenge, mine.hello, options.identity.token);
    pipe.send(0, TcpChannel::bytes_of(proof));
    Verdict verdict{};
    TcpChannel::read_into(pipe.receive(0, sizeof(verdict)), &verdict);
    if (verdict.admitted == 0) {
      throw CommError(
          CommError::Reason::kRefused,
          0,
          std::string(verdict.message, strnlen(verdict.message, sizeof(verdict.message))));
    }
    members = unpack(pipe.receive(0, members.size() * sizeof(PackedMember)));
  } else {
    std::string refusal;
    std::vector<Verdict> verdicts(members.size());
    for (int rank = 1; rank < transport.size(); ++rank) {
      NetHello hello{};
      TcpChannel::read_into(pipe.receive(rank, sizeof(hello)), &hello);
      const Challenge challenge = make_challenge(mine.hello, hello.hello, options.identity.token);
      pipe.send(rank, TcpChannel::bytes_of(challenge));
      NetProof proof{};
      TcpChannel::read_into(pipe.receive(rank, sizeof(proof)), &proof);
      std::optional<std::string> why = objection(mine.hello, hello.hello);
      if (!proof_is_genuine(proof.proof, challenge, hello.hello, options.identity.token)) {
        why = "it does not know the token of this job (TRIREME_TOKEN)";
      }
      members[index(rank)] = member_of(hello.hello, proof);
      if (why) {
        refusal = concat("rank 0 of ",
                         transport.size(),
                         " refused ",
                         name_of(hello.hello),
                         " on ",
                         members[index(rank)].host,
                         ": ",
                         *why);
      }
    }
    for (int rank = 1; rank < transport.size(); ++rank) {
      Verdict verdict{};
      verdict.admitted = refusal.empty() ? 1 : 0;
      refusal.copy(verdict.message, sizeof(verdict.message) - 1);
      pipe.send(rank, TcpChannel::bytes_of(verdict));
      if (refusal.empty()) {
        pipe.send(rank, pack(members));
      }
    }
    if (!refusal.empty()) {
      throw CommError(CommError::Reason::kRefused, -1, refusal);
    }
  }
  number_machines(members);
  return members;
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
