#pragma once

#include "comm/queue/backend.h"
#include "comm/queue/steps.h"
#include "comm/shm/endpoint.h"

namespace trireme::detail {

// Messages from rank to rank through mailboxes in shared memory. Large ones that lie in a
// SharedBuffer are fetched from there by the receiver; others pass through the sender's outbox in
// pieces, and the send is finished when the last piece is in it.
class Messages {
 public:
  explicit Messages(Endpoint& endpoint) : endpoint_(endpoint) {}

  Steps send(const Call& call);
  Steps recv(const Call& call);

 private:
  void push(int to, const Fragment& fragment);

  Endpoint& endpoint_;
};

}  // namespace trireme::detail
