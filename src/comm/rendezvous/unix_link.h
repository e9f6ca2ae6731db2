#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "trireme/core/deadline.h"
#include "trireme/core/file_descriptor.h"

namespace trireme::detail {

// Who is at the other end of a link, as the kernel knows it.
struct PeerCredentials {
  int pid = -1;
  unsigned uid = 0;
};

// Until poll() has one of `events` for `fd`; false when `deadline` comes first.
bool wait_for(int fd, short events, const Deadline& deadline);

// A connected Unix socket that keeps message boundaries and can carry file descriptors.
class UnixLink {
 public:
  UnixLink() = default;
  explicit UnixLink(FileDescriptor fd) : fd_(std::move(fd)) {}

  bool valid() const { return fd_.valid(); }
  int fd() const { return fd_.get(); }
  PeerCredentials peer() const;

  // Sends one message; false when the other end is gone. Blocks only while the other end's queue
  // is full, at most until `deadline`.
  bool send(const void* data,
            std::size_t bytes,
            const std::vector<int>& fds,
            const Deadline& deadline) const;

  // Receives one message of exactly `bytes`, and the descriptors with it. False when the other end
  // is gone, sends something of another size, or nothing came before `deadline`.
  bool receive(void* data,
               std::size_t bytes,
               std::vector<FileDescriptor>* fds,
               const Deadline& deadline) const;

 private:
  FileDescriptor fd_;
};

// A listening socket in the abstract namespace: it has no file, so nothing is left behind by a
// process that is killed.
class Listener {
 public:
  // False when the name is taken.
  static std::optional<Listener> listen(const std::string& name);
  int fd() const { return fd_.get(); }
  std::optional<UnixLink> accept() const;

 private:
  explicit Listener(FileDescriptor fd) : fd_(std::move(fd)) {}
  FileDescriptor fd_;
};

// Connects to a listener; nothing when nobody listens there.
std::optional<UnixLink> connect_to(const std::string& name);

}  // namespace trireme::detail
