#include "comm/rendezvous/unix_link.h"

#include <cerrno>
#include <cstring>
#include <thread>

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "comm/rendezvous/descriptor_messages.h"
#include "trireme/core/error.h"

namespace trireme::detail {
namespace {

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
                "a Unix socket could not be created: {}; check the limit on open files (ulimit -n)",
                {errno_text(errno)});
  return fd;
}

ucred credentials_of(int fd) {
  ucred credentials{-1, 0, 0};
  socklen_t length = sizeof(credentials);
  getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length);
  return credentials;
}

}  // namespace

UnixLink::UnixLink(FileDescriptor fd)
    : Link(std::move(fd)), peer_(concat("pid ", credentials_of(this->fd()).pid)) {}

// Abstract sockets have no permissions: anybody on this machine may connect.
std::optional<std::string> UnixLink::objection() const {
  const uid_t user = credentials_of(fd()).uid;
  return user == geteuid()
             ? std::nullopt
             : std::optional(
                   concat("it belongs to user ", user, " and this process to user ", geteuid()));
}

void UnixLink::push(std::string bytes, const std::vector<int>& fds) {
  if (outgoing_.empty() && try_to_send(bytes, fds)) {
    return;
  }
  Message later{std::move(bytes), {}};
  for (const int fd : fds) {  // the caller may close its own
    later.fds.emplace_back(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  }
  outgoing_.push_back(std::move(later));
}

void UnixLink::flush() {
  while (open() && !outgoing_.empty()) {
    std::vector<int> fds;
    for (const FileDescriptor& fd : outgoing_.front().fds) {
      fds.push_back(fd.get());
    }
    if (!try_to_send(outgoing_.front().bytes, fds)) {
      return;
    }
    outgoing_.pop_front();
  }
}

bool UnixLink::try_to_send(const std::string& bytes, const std::vector<int>& fds) {
  const ssize_t sent = send_message(fd(), bytes, fds);
  if (sent == static_cast<ssize_t>(bytes.size())) {
    return true;
  }
  if (errno == ETOOMANYREFS) {
    // Too many descriptors of this user are on their way: the receivers take them off one by one.
    std::this_thread::sleep_for(Milliseconds(1));
  }
  if (errno == EAGAIN || errno == ETOOMANYREFS) {
    return false;
  }
  note_unreachable();
  return true;
}

std::optional<Message> UnixLink::pull() {
  if (!open()) {
    return std::nullopt;
  }
  ssize_t length = 0;
  do {  // how long it is: what is read short is gone
    length = recv(fd(), nullptr, 0, MSG_PEEK | MSG_TRUNC);
  } while (length < 0 && errno == EINTR);
  if (length < 0 && errno == EAGAIN) {
    return std::nullopt;
  }
  if (length <= 0 || static_cast<std::size_t>(length) > longest()) {
    close(length > 0 ? "it sent something that Trireme does not send" : "");
    return std::nullopt;
  }
  Message result{std::string(static_cast<std::size_t>(length), '\0'), {}};
  if (receive_message(fd(), result.bytes, result.fds) != length) {
    close();
    return std::nullopt;
  }
  return result;
}

std::unique_ptr<UnixDoor> UnixDoor::open(const std::string& name) {
  FileDescriptor fd = new_socket();
  socklen_t length = 0;
  const sockaddr_un address = abstract_address(name, &length);
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 &&
      errno == EADDRINUSE) {
    return nullptr;
  }
  TRIREME_CHECK(::listen(fd.get(), 4096) == 0,
                "rank 0 cannot listen on the Unix socket @{}: {}",
                {name, errno_text(errno)});
  return std::unique_ptr<UnixDoor>(new UnixDoor(std::move(fd)));
}

std::unique_ptr<Link> UnixDoor::accept() {
  FileDescriptor fd(accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  return fd.valid() ? std::make_unique<UnixLink>(std::move(fd)) : nullptr;
}

std::unique_ptr<UnixLink> connect_to(const std::string& name) {
  FileDescriptor fd = new_socket();
  socklen_t length = 0;
  const sockaddr_un address = abstract_address(name, &length);
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    return nullptr;
  }
  return std::make_unique<UnixLink>(std::move(fd));
}

}  // namespace trireme::detail
