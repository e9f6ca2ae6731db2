#include "comm/rendezvous/tcp_link.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include <poll.h>
#include <sys/socket.h>

#include "comm/rendezvous/unix_link.h"
#include "trireme/core/error.h"

namespace trireme::detail {
namespace {

constexpr Milliseconds kConnectPatience{3000};

}  // namespace

TcpLink::TcpLink(FileDescriptor fd) : fd_(std::move(fd)) {
  prepare_connection(fd_);
}

std::string TcpLink::peer() const {
  return peer_address(fd_);
}

bool TcpLink::send(const std::string& message, const Deadline& deadline) {
  const auto length = static_cast<std::uint32_t>(message.size());
  const std::string framed = bytes_of(length) + message;
  std::size_t sent = 0;
  while (sent < framed.size()) {
    const ssize_t more =
        ::send(fd_.get(), framed.data() + sent, framed.size() - sent, MSG_NOSIGNAL);
    if (more > 0) {
      sent += static_cast<std::size_t>(more);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!wait_for(fd_.get(), POLLOUT, deadline)) {
        return false;
      }
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

TcpLink::State TcpLink::try_receive(std::string* message) {
  for (;;) {
    std::uint32_t length = 0;
    std::size_t whole = sizeof(length);
    if (received_.size() >= sizeof(length)) {
      std::memcpy(&length, received_.data(), sizeof(length));
      if (length > longest_) {
        received_ = {};
        return State::kClosed;  // not one of ours
      }
      whole += length;
      if (received_.size() == whole) {
        *message = received_.substr(sizeof(length));
        received_.clear();
        return State::kMessage;
      }
    }
    // No more than this message: what else is sent stays with the kernel, which knows when to stop.
    char buffer[16 << 10];
    const ssize_t got =
        recv(fd_.get(), buffer, std::min(sizeof(buffer), whole - received_.size()), 0);
    if (got > 0) {
      received_.append(buffer, static_cast<std::size_t>(got));
    } else if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      return State::kNotYet;
    } else if (got == 0 || errno != EINTR) {
      return State::kClosed;
    }
  }
}

bool TcpLink::receive(std::string* message, const Deadline& deadline) {
  for (;;) {
    switch (try_receive(message)) {
      case State::kMessage:
        return true;
      case State::kClosed:
        return false;
      case State::kNotYet:
        if (!wait_for(fd_.get(), POLLIN, deadline)) {
          return false;
        }
    }
  }
}

std::optional<TcpLink> try_connect(const MeetingPlace& place,
                                   const Deadline& deadline,
                                   std::string* why) {
  for (const SocketAddress& address : resolve(place)) {
    FileDescriptor fd = begin_connecting(address);
    int error = fd.valid() ? ETIMEDOUT : errno;
    const Deadline patience(std::min(kConnectPatience, deadline.left()));
    if (fd.valid() && wait_for(fd.get(), POLLOUT, patience)) {
      error = connecting_result(fd);
    }
    if (error == 0) {
      return TcpLink(std::move(fd));
    }
    *why = concat(address.text(), ": ", errno_text(error));
  }
  return std::nullopt;
}

}  // namespace trireme::detail
