#pragma once

#include "comm/shm/call.h"
#include "comm/shm/station.h"
#include "comm/steps.h"

namespace trireme::detail {

// Messages from rank to rank through mailboxes in shared memory. Large ones that lie in a
// SharedBuffer are fetched from there by the receiver; others pass through the sender's outbox in
// pieces, and the send is finished when the last piece is in it.
class Messages {
 public:
  explicit Messages(Station& station) : station_(station) {}

  Steps send(const Call& call);
  Steps recv(const Call& call);

 private:
  void push(int to, const Letter& letter);

  Station& station_;
};

}  // namespace trireme::detail
