#include "comm/rendezvous/tcp_link.h"

#include <algorithm>
#include <cerrno>

#include <sys/socket.h>

#include "trireme/core/error.h"

namespace trireme::detail {
namespace {

constexpr Milliseconds kConnectPatience{3000};  // for one address: a firewall may swallow it all
constexpr Milliseconds kBetweenLooks{100};
constexpr std::size_t kLengthBytes = 4;

std::size_t length_in(const std::string& bytes) {
  std::size_t length = 0;
  for (std::size_t byte = 0; byte < kLengthBytes; ++byte) {
    length |= static_cast<std::size_t>(static_cast<unsigned char>(bytes[byte])) << (8 * byte);
  }
  return length;
}

}  // namespace

TcpLink::TcpLink(FileDescriptor fd) : Link(std::move(fd)), peer_(peer_address(this->fd())) {}

void TcpLink::push(std::string bytes, const std::vector<int>& /*fds*/) {
  for (std::size_t byte = 0; byte < kLengthBytes; ++byte) {
    outgoing_ += static_cast<char>(bytes.size() >> (8 * byte) & 0xff);
  }
  outgoing_ += bytes;
}

void TcpLink::flush() {
  while (open() && !outgoing_.empty()) {
    const ssize_t sent = ::send(fd(), outgoing_.data(), outgoing_.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      outgoing_.erase(0, static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return;
    } else if (errno != EINTR) {
      note_unreachable();
      outgoing_.clear();
    }
  }
}

std::optional<Message> TcpLink::pull() {
  char buffer[16 << 10];
  while (open()) {
    std::size_t whole = kLengthBytes;
    if (incoming_.size() >= kLengthBytes) {
      const std::size_t length = length_in(incoming_);
      if (length > longest()) {
        // Closed over something unread, a connection is reset, which a harmless stranger reports.
        recv(fd(), buffer, sizeof(buffer), 0);
        close("it sent something that Trireme does not send");
        break;
      }
      whole += length;
      if (incoming_.size() == whole) {
        Message message{incoming_.substr(kLengthBytes), {}};
        incoming_.clear();
        return message;
      }
    }
    // No more than this message: what else is sent stays with the kernel, which knows when to stop.
    const ssize_t got = recv(fd(), buffer, std::min(sizeof(buffer), whole - incoming_.size()), 0);
    if (got > 0) {
      incoming_.append(buffer, static_cast<std::size_t>(got));
    } else if (got == 0 || errno == ECONNRESET) {
      close();  // also where the other end closed it without reading what we had sent
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      break;
    } else if (errno != EINTR) {
      close(errno_text(errno));
    }
  }
  return std::nullopt;
}

std::unique_ptr<Link> TcpDoor::accept() {
  FileDescriptor fd = accept_from(listener_);
  return fd.valid() ? std::make_unique<TcpLink>(std::move(fd)) : nullptr;
}

std::unique_ptr<Link> try_connect(const std::vector<SocketAddress>& addresses,
                                  const Deadline& deadline,
                                  const Look& look,
                                  std::string* why) {
  for (const SocketAddress& address : addresses) {
    FileDescriptor fd = begin_connecting(address);
    int error = fd.valid() ? ETIMEDOUT : errno;
    const Deadline patience(std::min(kConnectPatience, deadline.left()));
    const auto is_decided = [&] {
      return wait_for(fd.get(), POLLOUT, Deadline(std::min(kBetweenLooks, patience.left())));
    };
    bool decided = false;
    while (fd.valid() && !(decided = is_decided()) && !patience.passed()) {
      look();
    }
    if (decided) {
      error = connecting_result(fd);
    }
    if (error == 0) {
      return std::make_unique<TcpLink>(std::move(fd));
    }
    *why = concat(address.text(), ": ", errno_text(error));
  }
  return nullptr;
}

}  // namespace trireme::detail
