#include "trireme/comm/kept_memory.h"

#include "comm/rendezvous/membership_socket.h"
#include "trireme/comm/launch_protocol.h"
#include "trireme/core/error.h"

namespace trireme {

bool epoch_is_over() {
  const detail::LauncherWords words = detail::words_of_launcher(detail::membership_socket());
  return words.over || words.lost;
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
  auto answer = detail::receive_answer(socket);
  if (epoch_is_over()) {
    throw CommError(
        CommError::Reason::kPeerLeft, -1, "the number of ranks changes: this world ends");
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
