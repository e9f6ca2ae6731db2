#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/rendezvous/host.h"
#include "comm/rendezvous/member.h"
#include "comm/transport/transport.h"
#include "trireme/core/deadline.h"
#include "trireme/core/error.h"

namespace trireme::detail {

struct NetMeetingOptions {
  Identity identity;
  Milliseconds timeout{0};
  // Ranks that can already send each other messages, mpirun's for one, meet through that.
  Transport* transport = nullptr;
  // Others where rank 0 listens:
  std::string place;  // HOST:PORT of rank 0
  std::string where;  // what said so; for messages
  int listener = -1;  // rank 0: a descriptor that listens there already
  // Called now and then: throws why nobody will come.
  std::function<void(Milliseconds patience)> look = [](Milliseconds) {};
};

// Where the ranks of several machines find and admit each other (Note [handshake]): the others come
// to rank 0. Then small things can be exchanged through rank 0, until everyone knows enough to talk
// directly.
class NetMeeting {
 public:
  // Blocking, collective. Throws CommError (kRendezvousTimeout with the missing ranks, kRefused
  // with the reason) and ConfigError (a name that does not resolve, a port in use).
  explicit NetMeeting(const NetMeetingOptions& options);

  const std::vector<Member>& members() const { return members_; }
  // What no other world is called, and a key that its ranks alone have.
  const std::string& world() const { return world_; }
  const std::string& key() const { return key_; }
  // Until when ranks have to know each other, and each has its say in an exchange.
  const Deadline& deadline() const { return deadline_; }
  std::vector<std::string> exchange(const std::string& mine);
  // To be called by whoever waits for the others in another way: throws why nobody will come.
  void look() const { look_(Milliseconds(0)); }

 private:
  void host(const NetMeetingOptions& options);
  void join(const NetMeetingOptions& options);
  // Of rank 0 to all others: a word of everyone's, or that a rank is lost, which all then name.
  void tell_all(const std::string& message);
  std::string hear();
  [[noreturn]] void lost(int rank);
  [[noreturn]] void broken(int rank, const std::string& what) const;
  CommError::Reason reason() const;
  // Whoever has used all of its time still has its say; the others wait longer for rank 0's.
  Deadline a_little_later() const;

  int rank_;
  int size_;
  Deadline deadline_;
  std::function<void(Milliseconds patience)> look_;
  std::vector<std::unique_ptr<Link>> links_;  // rank 0: by rank; elsewhere one, to rank 0
  std::vector<Member> members_;               // by rank
  std::string world_;
  std::string key_;
};

}  // namespace trireme::detail
