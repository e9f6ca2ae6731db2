#include "launch/line_printer.h"

#include <cerrno>

#include <poll.h>
#include <unistd.h>

#include "trireme/core/error.h"

namespace trireme::detail {
namespace {

constexpr std::size_t kLastLines = 12;
constexpr std::size_t kLongestLine = 64 << 10;  // longer ones are cut into lines of this length

bool write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written > 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
    } else if (written < 0 && errno == EAGAIN) {
      pollfd entry{fd, POLLOUT, 0};
      poll(&entry, 1, -1);
    } else if (written < 0 && errno != EINTR) {
      return false;
    }
  }
  return true;
}

}  // namespace

LinePrinter::LinePrinter(int fd, int rank, int colour) : fd_(fd) {
  prefix_ = colour < 0 ? concat("[", rank, "] ") : concat("\033[", colour, "m[", rank, "]\033[0m ");
}

void LinePrinter::add(std::string_view text) {
  for (;;) {
    // Progress bars end their lines with a carriage return.
    const auto end = text.find_first_of("\r\n");
    partial_ += text.substr(0, end);
    while (partial_.size() > kLongestLine) {
      print(std::string_view(partial_).substr(0, kLongestLine));
      partial_.erase(0, kLongestLine);
    }
    if (end == std::string_view::npos) {
      return;
    }
    // "\r\n" is one end; so is a "\r" that begins the next piece of a line already printed.
    if (text[end] == '\n' || !partial_.empty()) {
      print(partial_);
      partial_.clear();
    }
    text.remove_prefix(
        end + 1 < text.size() && text[end] == '\r' && text[end + 1] == '\n' ? end + 2 : end + 1);
  }
}

void LinePrinter::finish() {
  if (!partial_.empty()) {
    print(partial_);
    partial_.clear();
  }
}

void LinePrinter::print(std::string_view line) {
  last_lines_.emplace_back(line);
  if (last_lines_.size() > kLastLines) {
    last_lines_.pop_front();
  }
  if (readable_) {
    readable_ = write_all(fd_, concat(prefix_, line, "\n"));
  }
}

}  // namespace trireme::detail
