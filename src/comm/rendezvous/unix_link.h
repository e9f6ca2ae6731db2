#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/rendezvous/link.h"

namespace trireme::detail {

// A connected Unix socket, which keeps message boundaries and can carry file descriptors. The
// kernel says who is at the other end, and nobody else is in between.
class UnixLink final : public Link {
 public:
  explicit UnixLink(FileDescriptor fd);

  std::string peer() const override { return peer_; }
  std::optional<std::string> objection() const override;  // to other users
  bool is_exposed() const override { return false; }
  void flush() override;
  bool all_sent() const override { return outgoing_.empty(); }

 protected:
  void push(std::string bytes, const std::vector<int>& fds) override;
  std::optional<Message> pull() override;

 private:
  // False where it cannot go yet.
  bool try_to_send(const std::string& bytes, const std::vector<int>& fds);

  std::string peer_;
  std::deque<Message> outgoing_;
};

// A listening socket in the abstract namespace: it has no file, so nothing is left behind by a
// process that is killed.
class UnixDoor final : public Door {
 public:
  // Null when the name is taken.
  static std::unique_ptr<UnixDoor> open(const std::string& name);
  int fd() const override { return fd_.get(); }
  std::unique_ptr<Link> accept() override;

 private:
  explicit UnixDoor(FileDescriptor fd) : fd_(std::move(fd)) {}
  FileDescriptor fd_;
};

// Connects to a door; null when nobody listens there.
std::unique_ptr<UnixLink> connect_to(const std::string& name);

}  // namespace trireme::detail
