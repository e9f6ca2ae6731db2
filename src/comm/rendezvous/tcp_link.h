#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/rendezvous/link.h"
#include "comm/rendezvous/net_socket.h"

namespace trireme::detail {

// A TCP connection: a message is its length, four bytes, the least significant first, then its
// bytes.
class TcpLink final : public Link {
 public:
  TcpLink() = default;  // closed
  explicit TcpLink(FileDescriptor fd);

  std::string peer() const override { return peer_; }
  void flush() override;
  bool all_sent() const override { return outgoing_.empty(); }

 protected:
  void push(std::string bytes, const std::vector<int>& fds) override;
  std::optional<Message> pull() override;

 private:
  std::string peer_;
  std::string incoming_;  // not yet a whole message
  std::string outgoing_;
};

class TcpDoor final : public Door {
 public:
  explicit TcpDoor(FileDescriptor listener) : listener_(std::move(listener)) {}
  int fd() const override { return listener_.get(); }
  std::unique_ptr<Link> accept() override;
  const FileDescriptor& listener() const { return listener_; }
  FileDescriptor take_listener() { return std::move(listener_); }

 private:
  FileDescriptor listener_;
};

// One attempt at each address; null when all fail, and `why` says how.
std::unique_ptr<Link> try_connect(const std::vector<SocketAddress>& addresses,
                                  const Deadline& deadline,
                                  const Look& look,
                                  std::string* why);

}  // namespace trireme::detail
