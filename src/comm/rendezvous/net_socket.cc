#include "comm/rendezvous/net_socket.h"

#include <cerrno>
#include <cstring>

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include "trireme/core/environment.h"
#include "trireme/core/error.h"

namespace trireme::detail {
namespace {

constexpr int kWaitingConnections = 4096;  // the kernel takes less where its limit is lower

sockaddr* as_address(sockaddr_storage& storage) {
  return reinterpret_cast<sockaddr*>(&storage);
}

// Not valid where this machine has no addresses of that family, or no descriptor left.
FileDescriptor new_socket(int family) {
  return FileDescriptor(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

void set_option(const FileDescriptor& socket, int level, int name, int value) {
  setsockopt(socket.get(), level, name, &value, sizeof(value));
}

// 0, or why it cannot be done (an errno value).
int try_to_listen(const SocketAddress& address, FileDescriptor* result) {
  FileDescriptor fd = new_socket(address.storage.ss_family);
  if (!fd.valid()) {
    return errno;
  }
  // Connections of a job that has just ended do not keep the port from the next one.
  set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.length) != 0 ||
      listen(fd.get(), kWaitingConnections) != 0) {
    return errno;
  }
  *result = std::move(fd);
  return 0;
}

SocketAddress own_address(const FileDescriptor& socket) {
  SocketAddress address;
  address.length = sizeof(address.storage);
  getsockname(socket.get(), as_address(address.storage), &address.length);
  return address;
}

void set_port(SocketAddress& address, int port) {
  const auto number = htons(static_cast<std::uint16_t>(port));
  if (address.storage.ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(&address.storage)->sin6_port = number;
  } else {
    reinterpret_cast<sockaddr_in*>(&address.storage)->sin_port = number;
  }
}

std::string reason_not_to_listen(const MeetingPlace& place,
                                 const SocketAddress& address,
                                 int error) {
  const std::string where = concat("machine 0 cannot listen at ", place.text(), ": ");
  switch (error) {
    case EADDRINUSE:
      return concat("{}port {} of {} is in use: choose another port for {}, on every machine",
                    {where, place.port, address.text(), place.source});
    case EADDRNOTAVAIL:
      return concat(
          "{}the address {} does not belong to this machine: {} is an address of machine 0; give "
          "one that \"ip address\" shows here, or start --node-rank 0 there",
          {where, address.text(), place.source});
    case EACCES:
      return concat("{}port {} needs privileges: choose a port of 1024 or above for {}",
                    {where, place.port, place.source});
    default:
      return concat(where, errno_text(error));
  }
}

}  // namespace

std::string MeetingPlace::text() const {
  return host.find(':') == std::string::npos ? concat(host, ":", port)
                                             : concat("[", host, "]:", port);
}

MeetingPlace parse_meeting_place(const std::string& text, const std::string& source) {
  const auto colon = text.rfind(':');
  std::string host = text.substr(0, colon == std::string::npos ? 0 : colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find_first_of("[]:") != std::string::npos) {
    host.clear();  // an IPv6 address without brackets: its end and the port cannot be told apart
  }
  const auto port =
      colon == std::string::npos ? std::nullopt : parse_integer(text.substr(colon + 1));
  TRIREME_CHECK(!host.empty() && port && *port >= 1 && *port <= 65535,
                "{}: expected HOST:PORT with a port from 1 to 65535, an IPv6 address in brackets "
                "([::1]:29500), found \"{}\"",
                {source, text});
  return {host, static_cast<int>(*port), source};
}

std::string SocketAddress::text() const {
  char host[NI_MAXHOST] = {};
  if (getnameinfo(reinterpret_cast<const sockaddr*>(&storage),
                  length,
                  host,
                  sizeof(host),
                  nullptr,
                  0,
                  NI_NUMERICHOST) != 0) {
    return "an unknown address";
  }
  return host;
}

bool SocketAddress::is_loopback() const {
  if (storage.ss_family == AF_INET6) {
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr) != 0;
  }
  const auto address = ntohl(reinterpret_cast<const sockaddr_in*>(&storage)->sin_addr.s_addr);
  return address >> 24 == 127;
}

std::vector<SocketAddress> resolve(const MeetingPlace& place) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(place.host.c_str(), std::to_string(place.port).c_str(), &hints, &found);
  TRIREME_CHECK(error == 0,
                "{} {}: the name \"{}\" does not resolve on this machine: {}; check its spelling "
                "(getent hosts {}), or give machine 0's numeric address",
                {place.source,
                 place.text(),
                 place.host,
                 error == EAI_SYSTEM ? errno_text(errno) : gai_strerror(error),
                 place.host});
  std::vector<SocketAddress> addresses;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    SocketAddress address;
    address.length = entry->ai_addrlen;
    std::memcpy(&address.storage, entry->ai_addr, entry->ai_addrlen);
    addresses.push_back(address);
  }
  freeaddrinfo(found);
  return addresses;
}

FileDescriptor listen_at(const std::vector<SocketAddress>& addresses, const MeetingPlace& place) {
  std::string reason;
  for (const SocketAddress& address : addresses) {
    FileDescriptor listener;
    const int error = try_to_listen(address, &listener);
    if (error == 0) {
      return listener;
    }
    if (reason.empty() || error == EADDRINUSE) {  // which says more than that another is not ours
      reason = reason_not_to_listen(place, address, error);
    }
  }
  throw ConfigError(reason);
}

FileDescriptor listen_beside(const FileDescriptor& listener) {
  SocketAddress address = own_address(listener);
  set_port(address, 0);
  FileDescriptor result;
  const int error = try_to_listen(address, &result);
  TRIREME_CHECK(error == 0,
                "no port is left at {} for the ranks to meet: {}",
                {address.text(), errno_text(error)});
  return result;
}

int port_of(const FileDescriptor& listener) {
  const SocketAddress address = own_address(listener);
  return ntohs(address.storage.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_port
                   : reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_port);
}

FileDescriptor accept_from(const FileDescriptor& listener) {
  FileDescriptor fd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (fd.valid()) {
    prepare_connection(fd);
  }
  return fd;
}

FileDescriptor begin_connecting(const SocketAddress& address) {
  FileDescriptor fd = new_socket(address.storage.ss_family);
  if (!fd.valid()) {
    return fd;
  }
  prepare_connection(fd);
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.length) != 0 &&
      errno != EINPROGRESS) {
    const int error = errno;
    fd.reset();
    errno = error;
  }
  return fd;
}

int connecting_result(const FileDescriptor& socket) {
  int error = 0;
  socklen_t length = sizeof(error);
  getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  if (error != 0) {
    return error;
  }
  // While nobody listens at a port of this very machine, a socket may be given that port for its
  // own end, and then it has connected to itself.
  SocketAddress peer;
  peer.length = sizeof(peer.storage);
  if (getpeername(socket.get(), as_address(peer.storage), &peer.length) != 0) {
    return errno;
  }
  const SocketAddress own = own_address(socket);
  const bool is_self =
      own.length == peer.length && std::memcmp(&own.storage, &peer.storage, own.length) == 0;
  return is_self ? ECONNREFUSED : 0;
}

void prepare_connection(const FileDescriptor& socket) {
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, 15);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 6);
}

std::string peer_address(int socket) {
  SocketAddress peer;
  peer.length = sizeof(peer.storage);
  if (getpeername(socket, as_address(peer.storage), &peer.length) != 0) {
    return "an unknown address";
  }
  return peer.text();
}

}  // namespace trireme::detail
