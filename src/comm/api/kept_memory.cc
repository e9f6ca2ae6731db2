#include "trireme/comm/kept_memory.h"

#include "comm/rendezvous/membership_socket.h"
#include "trireme/comm/launch_protocol.h"
#include "trireme/core/error.h"

namespace trireme {

bool epoch_is_over() {
  return detail::epoch_is_over(detail::membership_socket(), /*or_closed=*/false);
}

bool launcher_keeps_memory() {
  return detail::membership_socket() >= 0;
}

void keep_memory(std::int64_t epoch, std::int64_t use, const FileDescriptor& memory) {
  detail::send_with_descriptors(detail::membership_socket(),
                                detail::concat("{} {} {}", {kKeepWord, epoch, use}),
                                {memory.get()});
}

std::vector<FileDescriptor> kept_memory() {
  const int socket = detail::membership_socket();
  detail::send_with_descriptors(socket, kKeptWord, {});
  auto answer = detail::receive_packet(socket, 0);
  bool over = false;
  while (answer && answer->text == kOverWord) {
    over = true;
    answer = detail::receive_packet(socket, 0);
  }
  if (over) {
    throw CommError(CommError::Reason::kPeerLeft, -1, "ranks come or leave: this world ends");
  }
  if (!answer) {
    throw Error("the launcher of this elastic job has ended it");
  }
  return std::move(answer->descriptors);
}

void forget_memory_before(std::int64_t epoch, std::int64_t use) {
  detail::send_with_descriptors(
      detail::membership_socket(), detail::concat("{} {} {}", {kForgetWord, epoch, use}), {});
}

}  // namespace trireme
