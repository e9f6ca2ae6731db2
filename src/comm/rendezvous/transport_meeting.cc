#include "comm/rendezvous/transport_meeting.h"

#include <cstring>
#include <optional>

#include "comm/rendezvous/tcp_channel.h"
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

std::vector<Member> meet_through(Transport& transport, const TransportMeetingOptions& options) {
  const Deadline deadline(options.timeout);
  Pipe pipe(transport, deadline);
  const NetHello mine = make_net_hello(options.identity, 0, "");
  std::vector<Member> members(index(transport.size()));
  members[index(transport.rank())] =
      member_of(mine.hello, make_net_proof(options.local_rank, options.local_size));
  if (transport.rank() != 0) {
    pipe.send(0, TcpChannel::bytes_of(mine));
    Challenge challenge{};
    TcpChannel::read_into(pipe.receive(0, sizeof(challenge)), &challenge);
    NetProof proof = make_net_proof(options.local_rank, options.local_size);
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
    members = unpack_members(pipe.receive(0, packed_members_bytes(members.size())));
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
        pipe.send(rank, pack_members(members));
      }
    }
    if (!refusal.empty()) {
      throw CommError(CommError::Reason::kRefused, -1, refusal);
    }
  }
  number_machines(members);
  return members;
}

}  // namespace trireme::detail
