#include "launch/launcher_link.h"

#include <cerrno>

#include <poll.h>
#include <sys/socket.h>

#include "trireme/core/error.h"

namespace trireme::detail {
namespace {

constexpr std::size_t kHeaderBytes =
    8;  // length of the body and kind, least significant byte first

std::uint32_t number_at(const std::string& bytes, std::size_t at) {
  std::uint32_t value = 0;
  for (std::size_t byte = 0; byte < 4; ++byte) {
    value |= static_cast<std::uint32_t>(static_cast<unsigned char>(bytes[at + byte])) << (8 * byte);
  }
  return value;
}

void append_number(std::string& bytes, std::uint32_t value) {
  for (unsigned byte = 0; byte < 4; ++byte) {
    bytes += static_cast<char>(value >> (8 * byte) & 0xff);
  }
}

}  // namespace

LauncherLink::LauncherLink(FileDescriptor fd, std::size_t longest_body)
    : fd_(std::move(fd)), longest_body_(longest_body) {}

void LauncherLink::send(LauncherWord kind, std::string_view body) {
  if (!open()) {
    return;
  }
  append_number(outgoing_, static_cast<std::uint32_t>(body.size()));
  append_number(outgoing_, static_cast<std::uint32_t>(kind));
  outgoing_ += body;
  flush();
}

void LauncherLink::flush() {
  while (open() && !outgoing_.empty()) {
    const ssize_t sent = ::send(fd_.get(), outgoing_.data(), outgoing_.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      outgoing_.erase(0, static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN) {
      return;
    } else if (errno != EINTR) {
      // What the other end said before it went is still to be read: only reading ends a link.
      outgoing_.clear();
    }
  }
}

short LauncherLink::events() const {
  return static_cast<short>(outgoing_.empty() ? POLLIN : POLLIN | POLLOUT);
}

void LauncherLink::read_some() {
  char buffer[16 << 10];
  while (open()) {
    const ssize_t got = recv(fd_.get(), buffer, sizeof(buffer), 0);
    if (got > 0) {
      incoming_.append(buffer, static_cast<std::size_t>(got));
      if (incoming_.size() > longest_body_ + kHeaderBytes) {
        return;  // the messages that are here first
      }
    } else if (got == 0 || errno == ECONNRESET) {
      close();  // also where the other end closed it without reading what we had sent
    } else if (errno == EAGAIN) {
      return;
    } else if (errno != EINTR) {
      close(errno_text(errno));
    }
  }
}

std::optional<LauncherMessage> LauncherLink::next() {
  const auto is_whole = [this] {
    return incoming_.size() >= kHeaderBytes &&
           incoming_.size() - kHeaderBytes >= number_at(incoming_, 0);
  };
  if (!is_whole()) {
    read_some();
  }
  if (incoming_.size() >= kHeaderBytes && number_at(incoming_, 0) > longest_body_) {
    close("it sent something that no launcher of Trireme sends");
    incoming_.clear();
  }
  if (!is_whole()) {
    return std::nullopt;
  }
  const std::size_t length = number_at(incoming_, 0);
  LauncherMessage message{static_cast<LauncherWord>(number_at(incoming_, 4)),
                          incoming_.substr(kHeaderBytes, length)};
  incoming_.erase(0, kHeaderBytes + length);
  return message;
}

void LauncherLink::finish_sending() {
  if (open()) {
    shutdown(fd_.get(), SHUT_WR);
  }
}

void LauncherLink::close(const std::string& why) {
  fd_.reset();
  outgoing_.clear();
  why_closed_ = why;
}

}  // namespace trireme::detail
