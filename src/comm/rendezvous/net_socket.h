#pragma once

#include <string>
#include <vector>

#include <sys/socket.h>

#include "trireme/core/file_descriptor.h"

// TCP between machines: of launchers, and of ranks that meet. All sockets are non-blocking and
// close on exec.

namespace trireme::detail {

// Where machine 0 or rank 0 listens, as it was written.
struct MeetingPlace {
  std::string host;  // a name or an address, without brackets
  int port = 0;
  std::string source = "--rendezvous";  // what said so; for messages

  std::string text() const;  // "HOST:PORT", "[HOST]:PORT" for IPv6
};

// Throws ConfigError for what is not HOST:PORT.
MeetingPlace parse_meeting_place(const std::string& text,
                                 const std::string& source = "--rendezvous");

// An address that a name stands for.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  std::string text() const;  // of the address alone, in numbers
  bool is_loopback() const;
};

// May ask a name server, and block meanwhile. Throws ConfigError when the name does not resolve.
std::vector<SocketAddress> resolve(const MeetingPlace& place);

// Listens at one of the addresses, which are those of `place`. Throws ConfigError that tells
// apart a port in use, an address of another machine and the rest.
FileDescriptor listen_at(const std::vector<SocketAddress>& addresses, const MeetingPlace& place);

// Another listener at the same address with a port that was free.
FileDescriptor listen_beside(const FileDescriptor& listener);
int port_of(const FileDescriptor& listener);

// The next connection; not valid when there is none.
FileDescriptor accept_from(const FileDescriptor& listener);

// Begins to connect; the socket is ready for writing when it is decided. Not valid, with the reason
// in errno, where it fails at once.
FileDescriptor begin_connecting(const SocketAddress& address);
// 0 when it is connected, else why not (an errno value).
int connecting_result(const FileDescriptor& socket);

// Small messages leave at once; a peer that vanished is noticed while nothing is sent.
void prepare_connection(const FileDescriptor& socket);

std::string peer_address(int socket);

}  // namespace trireme::detail
