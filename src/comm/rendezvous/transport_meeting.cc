#include "comm/rendezvous/transport_meeting.h"

#include <optional>

#include "comm/rendezvous/tcp_link.h"
#include "trireme/core/error.h"
#include "trireme/core/index.h"

namespace trireme::detail {
namespace {

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

  void finish(Request request, int peer) {
    while (!transport_.finished(request)) {
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

std::vector<Member> meet_through(Transport& transport, const TransportMeetingOptions& options) {
  const Deadline deadline(options.timeout);
  Pipe pipe(transport, deadline);
  const std::string& token = options.identity.token;
  const NetHello mine = make_net_hello(options.identity, options.local_rank, options.local_size);
  std::vector<Member> members(index(transport.size()));
  members[index(transport.rank())] = member_of(mine);
  if (transport.rank() != 0) {
    const Greeting greeting = make_greeting(0, "");
    pipe.send(0, TcpLink::bytes_of(greeting));
    Challenge challenge{};
    TcpLink::read_into(pipe.receive(0, sizeof(challenge)), &challenge);
    pipe.send(0, TcpLink::bytes_of(introduce(greeting, challenge, mine, token)));
    Verdict verdict{};
    TcpLink::read_into(pipe.receive(0, sizeof(verdict)), &verdict);
    if (verdict.admitted == 0) {
      throw CommError(CommError::Reason::kRefused, 0, refusal_text(verdict));
    }
    std::uint64_t length = 0;
    TcpLink::read_into(pipe.receive(0, sizeof(length)), &length);
    auto all = unpack_members(pipe.receive(0, length));
    TRIREME_ASSERT(all && all->size() == members.size(), "rank 0 sent other ranks than there are");
    members = std::move(*all);
  } else {
    std::string reason;
    for (int rank = 1; rank < transport.size(); ++rank) {
      Greeting greeting{};
      TcpLink::read_into(pipe.receive(rank, sizeof(greeting)), &greeting);
      const Challenge challenge = make_challenge(greeting, token);
      pipe.send(rank, TcpLink::bytes_of(challenge));
      Introduction<NetHello> introduction{};
      TcpLink::read_into(pipe.receive(rank, sizeof(introduction)), &introduction);
      const Hello& hello = introduction.said.hello;
      std::optional<std::string> why = objection(mine.hello, hello);
      if (!introduction_is_genuine(introduction, greeting, challenge, token)) {
        why = "it does not know the token of this job (TRIREME_TOKEN)";
      }
      members[index(rank)] = member_of(introduction.said);
      if (why) {
        reason = concat("rank 0 of ",
                        transport.size(),
                        " refused ",
                        name_of(hello),
                        " on ",
                        members[index(rank)].host,
                        ": ",
                        *why);
      }
    }
    for (int rank = 1; rank < transport.size(); ++rank) {
      const Verdict verdict = reason.empty() ? Verdict{1, {}} : refusal(reason);
      pipe.send(rank, TcpLink::bytes_of(verdict));
      if (reason.empty()) {
        const std::string all = pack_members(members);
        pipe.send(rank, TcpLink::bytes_of(std::uint64_t{all.size()}));
        pipe.send(rank, all);
      }
    }
    if (!reason.empty()) {
      throw CommError(CommError::Reason::kRefused, -1, reason);
    }
  }
  number_machines(members);
  return members;
}

}  // namespace trireme::detail
