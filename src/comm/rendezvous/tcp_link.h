#pragma once

#include <optional>
#include <string>

#include "comm/rendezvous/net_socket.h"
#include "trireme/core/deadline.h"
#include "trireme/core/file_descriptor.h"

namespace trireme::detail {

// A TCP connection that carries whole messages: their length, then their bytes. A length is
// believed only up to a limit: whoever has not been admitted must not make this side keep much.
class TcpLink {
 public:
  TcpLink() = default;
  explicit TcpLink(FileDescriptor fd);

  bool valid() const { return fd_.valid(); }
  int fd() const { return fd_.get(); }
  // "10.0.0.2:40312"; for messages.
  std::string peer() const;

  // The longest message that is taken; whoever sends a longer one is hung up on.
  static constexpr std::size_t kLongestFromStranger = 4096;
  static constexpr std::size_t kLongestFromMember = 64 << 20;
  void set_longest(std::size_t bytes) { longest_ = bytes; }

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
  std::size_t longest_ = kLongestFromStranger;
  std::string received_;  // not yet a whole message
};

// One attempt to connect; nothing when it fails, and `why` says how. Throws ConfigError when the
// name does not resolve.
std::optional<TcpLink> try_connect(const MeetingPlace& place,
                                   const Deadline& deadline,
                                   std::string* why);

}  // namespace trireme::detail
