#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <poll.h>

#include "comm/rendezvous/handshake.h"
#include "trireme/core/deadline.h"
#include "trireme/core/file_descriptor.h"

namespace trireme::detail {

// Until poll() has one of `events` for `fd`; false when `deadline` comes first.
bool wait_for(int fd, short events, const Deadline& deadline);

struct Message {
  std::string bytes;
  std::vector<FileDescriptor> fds;  // over a Unix socket
};

// Called now and then by whoever waits: throws where there is a reason to wait no longer.
using Look = std::function<void()>;

// A connection to another process that carries whole messages. What cannot be sent yet waits here.
class Link {
 public:
  Link() = default;
  explicit Link(FileDescriptor fd) : fd_(std::move(fd)) {}
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;
  virtual ~Link() = default;

  virtual bool open() const { return fd_.valid(); }
  // Why it is no longer open, for people; empty where the other end simply closed it.
  const std::string& why_closed() const { return why_closed_; }
  int fd() const { return fd_.get(); }
  // To poll for.
  short events() const { return static_cast<short>(all_sent() ? POLLIN : POLLIN | POLLOUT); }

  // Who is at the other end, as far as the system knows: "pid 4711", "10.0.0.2", "rank 3".
  virtual std::string peer() const = 0;
  // Why nobody there is to be talked to at all; nothing where it may be.
  virtual std::optional<std::string> objection() const { return std::nullopt; }
  // Somebody between the two could read what is sent, or change it.
  virtual bool is_exposed() const { return true; }

  // The longest message that is taken; whoever sends a longer one is hung up on. A length is not
  // believed: whoever has not been admitted must not make this side keep much.
  static constexpr std::size_t kLongestFromStranger = 4096;
  static constexpr std::size_t kLongestFromMember = 64 << 20;
  // The other end has been admitted, or has admitted this one.
  void trust(const SessionKeys& keys);

  void send(const std::string& bytes, const std::vector<int>& fds = {});
  // Sends what can be sent now.
  virtual void flush() = 0;
  virtual bool all_sent() const = 0;
  // The next message that has come whole.
  std::optional<Message> next();
  // Nothing is sent after this; the other end sees the end of the stream.
  void finish_sending();
  virtual void close(const std::string& why = {});

  // --- with patience: false, or nothing, when the link is closed or the deadline passes

  bool send_by(const Deadline& deadline,
               const std::string& bytes,
               const std::vector<int>& fds = {});
  std::optional<Message> receive(const Deadline& deadline, const Look& look = {});
  // The bytes of a struct, to and from another process of this very program.
  bool send(const void* data, std::size_t bytes, const std::vector<int>& fds, const Deadline& by) {
    return send_by(by, {static_cast<const char*>(data), bytes}, fds);
  }
  bool receive(void* data, std::size_t bytes, std::vector<FileDescriptor>* fds, const Deadline& by);

 protected:
  virtual void push(std::string bytes, const std::vector<int>& fds) = 0;
  virtual std::optional<Message> pull() = 0;
  // Until one of `events` may have come, not for long.
  virtual void wait(short events, const Deadline& deadline);
  std::size_t longest() const { return longest_; }
  // Nothing can be sent any more. What the other end said before it went is still to be read: only
  // reading ends a link.
  void note_unreachable() { unreachable_ = true; }

 private:
  FileDescriptor fd_;
  std::string why_closed_;
  bool unreachable_ = false;
  std::size_t longest_ = kLongestFromStranger;
  struct Seals {
    Seal outgoing;
    Seal incoming;
  };
  std::optional<Seals> seals_;
};

// Where connections come from.
class Door {
 public:
  Door() = default;
  Door(const Door&) = delete;
  Door& operator=(const Door&) = delete;
  virtual ~Door() = default;

  virtual int fd() const = 0;
  // The next connection; null where there is none, with the reason in errno.
  virtual std::unique_ptr<Link> accept() = 0;
  // Everyone comes once: nobody else can after them, and whoever is sent away cannot come again.
  virtual bool comes_once() const { return false; }
  virtual bool is_closed() const { return false; }
  // Until one of `entries` is ready, or something may be.
  virtual void wait(std::vector<pollfd>& entries, Milliseconds most);
};

}  // namespace trireme::detail
