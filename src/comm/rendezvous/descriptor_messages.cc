#include "comm/rendezvous/descriptor_messages.h"

#include <cerrno>
#include <cstring>

#include <sys/socket.h>

#include "trireme/core/error.h"

namespace trireme::detail {

ssize_t send_message(int socket, const std::string& bytes, const std::vector<int>& fds, int flags) {
  TRIREME_ASSERT(fds.size() <= kMostDescriptors, "too many descriptors in one message");
  alignas(cmsghdr) std::byte room[CMSG_SPACE(kMostDescriptors * sizeof(int))];
  iovec piece{const_cast<char*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = room;
    message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size() * sizeof(int));
  }
  ssize_t sent = 0;
  do {
    sent = sendmsg(socket, &message, flags | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent;
}

ssize_t receive_message(int socket,
                        std::span<char> bytes,
                        std::vector<FileDescriptor>& fds,
                        int flags) {
  alignas(cmsghdr) std::byte room[CMSG_SPACE(kMostDescriptors * sizeof(int))];
  iovec piece{bytes.data(), bytes.size()};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = room;
  message.msg_controllen = sizeof(room);
  ssize_t got = 0;
  do {
    got = recvmsg(socket, &message, flags | MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  // All of them, whoever has sent them: one that is not taken stays open.
  for (cmsghdr* header = got < 0 ? nullptr : CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) {
      continue;
    }
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      fds.emplace_back(fd);
    }
  }
  return got;
}

}  // namespace trireme::detail
