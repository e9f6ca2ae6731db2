#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "comm/rendezvous/link.h"
#include "comm/transport/transport.h"

namespace trireme::detail {

// Messages between two ranks that a transport connects already, mpirun's for one: the length of
// each, then its bytes.
class TransportLink final : public Link {
 public:
  TransportLink(Transport& transport, int peer) : transport_(transport), peer_(peer) {}
  ~TransportLink() override;

  bool open() const override { return !closed_; }
  std::string peer() const override;
  void flush() override;
  bool all_sent() const override { return outgoing_.empty(); }
  void close(const std::string& why = {}) override;

 protected:
  void push(std::string bytes, const std::vector<int>& fds) override;
  std::optional<Message> pull() override;
  void wait(short events, const Deadline& deadline) override;

 private:
  // On its way: its memory belongs to the transport.
  struct Sending {
    std::unique_ptr<std::string> bytes;
    Request request;
  };
  void expect(std::size_t bytes);
  void send_one(std::string bytes);

  Transport& transport_;
  const int peer_;
  bool closed_ = false;
  std::unique_ptr<std::string> incoming_;  // null: nothing is expected
  bool has_length_ = false;                // the next one that comes is a message
  Request receiving_;
  std::deque<Sending> outgoing_;
};

// Every other rank comes once.
class TransportDoor final : public Door {
 public:
  explicit TransportDoor(Transport& transport) : transport_(transport) {}
  int fd() const override { return -1; }
  std::unique_ptr<Link> accept() override;
  bool comes_once() const override { return true; }
  bool is_closed() const override { return next_ == transport_.size(); }
  void wait(std::vector<pollfd>& entries, Milliseconds most) override;

 private:
  Transport& transport_;
  int next_ = 1;
};

}  // namespace trireme::detail
