#include "comm/rendezvous/link.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <sys/socket.h>

#include "trireme/core/error.h"

namespace trireme::detail {

bool wait_for(int fd, short events, const Deadline& deadline) {
  pollfd entry{fd, events, 0};
  for (;;) {
    // A millisecond more than is left, which is rounded down: the last look comes after the end.
    const auto left = std::min<std::int64_t>(deadline.left().count() + 1, 1000);
    const int ready = poll(&entry, 1, deadline.passed() ? 0 : static_cast<int>(left));
    if (ready > 0) {
      return true;
    }
    if ((ready < 0 && errno != EINTR) || deadline.passed()) {
      return false;
    }
  }
}

void Door::wait(std::vector<pollfd>& entries, Milliseconds most) {
  poll(entries.data(), entries.size(), static_cast<int>(most.count()));
}

void Link::trust(const SessionKeys& keys) {
  longest_ = kLongestFromMember;
  if (is_exposed()) {
    seals_.emplace(Seals{Seal(keys.sends), Seal(keys.receives)});
  }
}

void Link::send(const std::string& bytes, const std::vector<int>& fds) {
  if (open()) {
    push(seals_ ? seals_->outgoing.close(bytes) : bytes, fds);
    flush();
  }
}

std::optional<Message> Link::next() {
  auto message = pull();
  if (message && seals_ && !seals_->incoming.open(message->bytes, &message->bytes)) {
    close("a message was altered, replayed or left out on the way");
    return std::nullopt;
  }
  return message;
}

void Link::finish_sending() {
  if (fd_.valid()) {
    shutdown(fd_.get(), SHUT_WR);
  }
}

void Link::close(const std::string& why) {
  fd_.reset();
  why_closed_ = why;
}

void Link::wait(short events, const Deadline& deadline) {
  constexpr Milliseconds kMost{100};
  wait_for(fd(), events, Deadline(std::min(kMost, deadline.left())));
}

bool Link::send_by(const Deadline& deadline,
                   const std::string& bytes,
                   const std::vector<int>& fds) {
  send(bytes, fds);
  while (open() && !all_sent() && !deadline.passed()) {
    wait(POLLOUT, deadline);
    flush();
  }
  return open() && all_sent() && !unreachable_;
}

std::optional<Message> Link::receive(const Deadline& deadline, const Look& look) {
  for (;;) {
    flush();
    const bool is_last = deadline.passed();
    if (auto message = next()) {
      return message;
    }
    if (!open() || is_last) {
      return std::nullopt;
    }
    if (look) {
      look();
    }
    wait(events(), deadline);
  }
}

bool Link::receive(void* data,
                   std::size_t bytes,
                   std::vector<FileDescriptor>* fds,
                   const Deadline& by) {
  auto message = receive(by);
  if (!message || message->bytes.size() != bytes) {
    return false;
  }
  std::memcpy(data, message->bytes.data(), bytes);
  if (fds != nullptr) {
    *fds = std::move(message->fds);
  }
  return true;
}

}  // namespace trireme::detail
