#pragma once

#include <optional>
#include <string>

#include "trireme/core/deadline.h"
#include "trireme/core/file_descriptor.h"

namespace trireme::detail {

struct HostAndPort {
  std::string host;
  int port = 0;
};

// "HOST:PORT" or "[ADDRESS]:PORT"; `where` names the option or variable in the message of the
// ConfigError that anything else gets.
HostAndPort parse_host_and_port(const std::string& text, const std::string& where);

// A TCP connection that carries whole messages: their length, then their bytes.
class TcpChannel {
 public:
  TcpChannel() = default;
  explicit TcpChannel(FileDescriptor fd);

  bool valid() const { return fd_.valid(); }
  int fd() const { return fd_.get(); }
  // "10.0.0.2:40312"; for messages.
  std::string peer() const;

  // False when the connection is gone or the deadline has passed.
  bool send(const std::string& message, const Deadline& deadline);
  bool receive(std::string* message, const Deadline& deadline);

  enum class State { kMessage, kNotYet, kClosed };
  // Without waiting.
  State try_receive(std::string* message);

  // The bytes of a struct, as a message.
  template <class T>
  static std::string bytes_of(const T& value) {
    return {reinterpret_cast<const char*>(&value), sizeof(value)};
  }
  // Back again; false where the length is not that of a T.
  template <class T>
  static bool read_into(const std::string& message, T* value) {
    if (message.size() != sizeof(*value)) {
      return false;
    }
    message.copy(reinterpret_cast<char*>(value), sizeof(*value));
    return true;
  }

 private:
  FileDescriptor fd_;
  std::string received_;  // not yet a whole message
};

// A socket that listens at HOST:PORT on this machine; an empty host means all its addresses. Throws
// ConfigError that says which it is: the name does not resolve, the address is not of this machine,
// the port is in use.
FileDescriptor listen_at(const HostAndPort& place, const std::string& where);
std::optional<TcpChannel> accept_from(int listener);

// One attempt to connect; nothing when it fails, and `why` says how. Throws ConfigError when the
// name does not resolve.
std::optional<TcpChannel> try_connect(const HostAndPort& place,
                                      const std::string& where,
                                      const Deadline& deadline,
                                      std::string* why);

}  // namespace trireme::detail
