#include "comm/rendezvous/unix_link.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "trireme/core/error.h"

namespace trireme::detail {
namespace {

constexpr std::size_t kMaxDescriptors = 250;  // the kernel's limit on one message is 253

sockaddr_un abstract_address(const std::string& name, socklen_t* length) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  TRIREME_ASSERT(name.size() + 1 < sizeof(address.sun_path), "socket name too long: ", name);
  std::memcpy(address.sun_path + 1, name.data(), name.size());  // a leading zero: abstract
  *length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

FileDescriptor new_socket() {
  FileDescriptor fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  TRIREME_CHECK(fd.valid(),
                "a Unix socket could not be created: ",
                errno_text(errno),
                "; check the limit on open files (ulimit -n)");
  return fd;
}

}  // namespace

bool wait_for(int fd, short events, const Deadline& deadline) {
  pollfd entry{fd, events, 0};
  for (;;) {
    // A millisecond more than is left, which is rounded down: the last look comes after the end.
    const auto left = std::min<std::int64_t>(deadline.left().count() + 1, 1000);
    const int ready = poll(&entry, 1, deadline.passed() ? 0 : static_cast<int>(left));
    if (ready > 0) {
      return true;
    }
    if ((ready < 0 && errno != EINTR) || deadline.passed()) {
      return false;
    }
  }
}

PeerCredentials UnixLink::peer() const {
  ucred credentials{};
  socklen_t length = sizeof(credentials);
  if (getsockopt(fd_.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    return {};
  }
  return {credentials.pid, credentials.uid};
}

bool UnixLink::send(const void* data,
                    std::size_t bytes,
                    const std::vector<int>& fds,
                    const Deadline& deadline) const {
  iovec piece{const_cast<void*>(data), bytes};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  std::vector<std::byte> ancillary;
  if (!fds.empty()) {
    TRIREME_ASSERT(fds.size() <= kMaxDescriptors, "too many descriptors in one message");
    ancillary.resize(CMSG_SPACE(fds.size() * sizeof(int)));
    message.msg_control = ancillary.data();
    message.msg_controllen = ancillary.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size() * sizeof(int));
  }
  for (;;) {
    const ssize_t sent = sendmsg(fd_.get(), &message, MSG_NOSIGNAL);
    if (sent == static_cast<ssize_t>(bytes)) {
      return true;
    }
    if (sent < 0 && errno == EINTR) {
      continue;
    }
    if (sent < 0 && errno == EAGAIN && wait_for(fd_.get(), POLLOUT, deadline)) {
      continue;
    }
    // Too many descriptors of this user are on their way: the receivers take them off one by one.
    if (sent < 0 && errno == ETOOMANYREFS && !deadline.passed()) {
      std::this_thread::sleep_for(Milliseconds(1));
      continue;
    }
    return false;
  }
}

bool UnixLink::receive(void* data,
                       std::size_t bytes,
                       std::vector<FileDescriptor>* fds,
                       const Deadline& deadline) const {
  alignas(cmsghdr) std::byte ancillary[CMSG_SPACE(kMaxDescriptors * sizeof(int))];
  for (;;) {
    iovec piece{data, bytes};
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = ancillary;
    message.msg_controllen = sizeof(ancillary);
    const ssize_t received = recvmsg(fd_.get(), &message, MSG_CMSG_CLOEXEC);
    if (received < 0 && errno == EINTR) {
      continue;
    }
    if (received < 0 && errno == EAGAIN && wait_for(fd_.get(), POLLIN, deadline)) {
      continue;
    }
    if (received < 0) {
      return false;
    }
    // Take every descriptor that came, also from a message that is then refused: an open one that
    // nobody owns would stay open.
    std::vector<FileDescriptor> arrived;
    for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
         header = CMSG_NXTHDR(&message, header)) {
      if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) {
        continue;
      }
      const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (std::size_t i = 0; i < count; ++i) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
        arrived.emplace_back(fd);
      }
    }
    // Descriptors that did not fit under the limit on open files are missing from `arrived`: the
    // caller counts them.
    if (received != static_cast<ssize_t>(bytes) || (message.msg_flags & MSG_TRUNC) != 0) {
      return false;
    }
    if (fds != nullptr) {
      *fds = std::move(arrived);
    }
    return true;
  }
}

std::optional<Listener> Listener::listen(const std::string& name) {
  FileDescriptor fd = new_socket();
  socklen_t length = 0;
  const sockaddr_un address = abstract_address(name, &length);
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    if (errno == EADDRINUSE) {
      return std::nullopt;
    }
    throw ConfigError(
        concat("rank 0 cannot listen on the Unix socket @", name, ": ", errno_text(errno)));
  }
  TRIREME_CHECK(::listen(fd.get(), 4096) == 0,
                "rank 0 cannot listen on the Unix socket @",
                name,
                ": ",
                errno_text(errno));
  return Listener(std::move(fd));
}

std::optional<UnixLink> Listener::accept() const {
  FileDescriptor fd(accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd.valid()) {
    return std::nullopt;
  }
  return UnixLink(std::move(fd));
}

std::optional<UnixLink> connect_to(const std::string& name) {
  FileDescriptor fd = new_socket();
  socklen_t length = 0;
  const sockaddr_un address = abstract_address(name, &length);
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    return std::nullopt;
  }
  return UnixLink(std::move(fd));
}

}  // namespace trireme::detail
