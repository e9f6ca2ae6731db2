#include "comm/rendezvous/tcp_channel.h"

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "trireme/core/environment.h"
#include "trireme/core/error.h"

namespace trireme::detail {
namespace {

constexpr std::uint32_t kMostBytes = 64 << 20;
constexpr Milliseconds kConnectPatience{3000};
constexpr int kBacklog = 1024;

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

Addresses resolve(const HostAndPort& place, const std::string& where, bool to_listen) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = (to_listen ? AI_PASSIVE : 0) | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(place.host.empty() ? nullptr : place.host.c_str(),
                                std::to_string(place.port).c_str(),
                                &hints,
                                &list);
  TRIREME_CHECK(error == 0,
                where,
                ": the name \"",
                place.host,
                "\" does not resolve on this machine: ",
                gai_strerror(error),
                "; check the spelling, or give an address");
  return Addresses(list);
}

std::string text_of(const sockaddr* address, socklen_t length) {
  char host[NI_MAXHOST] = {};
  char port[NI_MAXSERV] = {};
  if (getnameinfo(address,
                  length,
                  host,
                  sizeof(host),
                  port,
                  sizeof(port),
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "?";
  }
  return concat(host, ":", port);
}

bool wait_for(int fd, short events, const Deadline& deadline) {
  pollfd entry{fd, events, 0};
  for (;;) {
    const auto left = std::min<std::int64_t>(deadline.left().count() + 1, 1000);
    const int ready = poll(&entry, 1, static_cast<int>(left));
    if (ready > 0) {
      return true;
    }
    if ((ready < 0 && errno != EINTR) || deadline.passed()) {
      return false;
    }
  }
}

}  // namespace

HostAndPort parse_host_and_port(const std::string& text, const std::string& where) {
  const auto colon = text.rfind(':');
  std::string host = colon == std::string::npos ? "" : text.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  const auto port = parse_integer(colon == std::string::npos ? "" : text.substr(colon + 1));
  TRIREME_CHECK(!host.empty() && port && *port >= 1 && *port <= 65535,
                where,
                ": expected HOST:PORT with a port from 1 to 65535, found \"",
                text,
                "\"");
  return {host, static_cast<int>(*port)};
}

TcpChannel::TcpChannel(FileDescriptor fd) : fd_(std::move(fd)) {
  const int on = 1;
  setsockopt(fd_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  fcntl(fd_.get(), F_SETFL, fcntl(fd_.get(), F_GETFL) | O_NONBLOCK);
}

std::string TcpChannel::peer() const {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  if (getpeername(fd_.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    return "?";
  }
  return text_of(reinterpret_cast<const sockaddr*>(&address), length);
}

bool TcpChannel::send(const std::string& message, const Deadline& deadline) {
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

TcpChannel::State TcpChannel::try_receive(std::string* message) {
  for (;;) {
    std::uint32_t length = 0;
    if (received_.size() >= sizeof(length)) {
      std::memcpy(&length, received_.data(), sizeof(length));
      if (length > kMostBytes) {
        return State::kClosed;  // not one of ours
      }
      if (received_.size() >= sizeof(length) + length) {
        *message = received_.substr(sizeof(length), length);
        received_.erase(0, sizeof(length) + length);
        return State::kMessage;
      }
    }
    char buffer[16 << 10];
    const ssize_t got = recv(fd_.get(), buffer, sizeof(buffer), 0);
    if (got > 0) {
      received_.append(buffer, static_cast<std::size_t>(got));
    } else if (got == 0) {
      return State::kClosed;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return State::kNotYet;
    } else if (errno != EINTR) {
      return State::kClosed;
    }
  }
}

bool TcpChannel::receive(std::string* message, const Deadline& deadline) {
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

FileDescriptor listen_at(const HostAndPort& place, const std::string& where) {
  const Addresses list = resolve(place, where, true);
  int error = 0;
  for (const addrinfo* at = list.get(); at != nullptr; at = at->ai_next) {
    FileDescriptor fd(socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd.valid()) {
      error = errno;
      continue;
    }
    const int on = 1;
    setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (at->ai_family == AF_INET6) {
      const int off = 0;
      setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    }
    if (bind(fd.get(), at->ai_addr, at->ai_addrlen) == 0 && listen(fd.get(), kBacklog) == 0) {
      return fd;
    }
    error = errno;
  }
  const std::string text = concat(place.host, ":", place.port);
  TRIREME_CHECK(error != EADDRINUSE,
                where,
                ": port ",
                place.port,
                " of ",
                place.host.empty() ? "this machine" : place.host,
                " is in use: choose another port, or end the job that has it");
  TRIREME_CHECK(
      error != EADDRNOTAVAIL,
      where,
      ": ",
      text,
      " is not an address of this machine: machine 0 listens there, the others come to it; "
      "give an address of machine 0");
  throw ConfigError(concat(where, ": cannot listen at ", text, ": ", errno_text(error)));
}

std::optional<TcpChannel> accept_from(int listener) {
  FileDescriptor fd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd.valid()) {
    return std::nullopt;
  }
  return TcpChannel(std::move(fd));
}

std::optional<TcpChannel> try_connect(const HostAndPort& place,
                                      const std::string& where,
                                      const Deadline& deadline,
                                      std::string* why) {
  const Addresses list = resolve(place, where, false);
  for (const addrinfo* at = list.get(); at != nullptr; at = at->ai_next) {
    FileDescriptor fd(socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    int error = fd.valid() ? 0 : errno;
    if (error == 0 && connect(fd.get(), at->ai_addr, at->ai_addrlen) != 0) {
      error = errno;
      if (error == EINPROGRESS) {
        const Deadline patience(std::min(kConnectPatience, deadline.left()));
        socklen_t length = sizeof(error);
        error = ETIMEDOUT;
        if (wait_for(fd.get(), POLLOUT, patience)) {
          getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
        }
      }
    }
    if (error == 0) {
      return TcpChannel(std::move(fd));
    }
    *why = concat(text_of(at->ai_addr, at->ai_addrlen), ": ", errno_text(error));
  }
  return std::nullopt;
}

}  // namespace trireme::detail
