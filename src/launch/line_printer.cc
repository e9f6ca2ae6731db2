#include "launch/line_printer.h"

#include <cerrno>

#include <poll.h>
#include <unistd.h>

#include "trireme/core/error.h"

namespace trireme::detail {
namespace {

constexpr std::size_t kLastLines = 12;
constexpr std::size_t kLongestLine = 64 << 10;  // longer ones are cut into lines of this length

}  // namespace

LinePrinter::LinePrinter(OutputQueue& output, int rank, int colour) : output_(&output) {
  relabel(rank, colour);
}

void LinePrinter::relabel(int rank, int colour) {
  prefix_ = rank == kNoLabel ? ""
            : colour < 0     ? concat("[", rank, "] ")
                             : concat("\033[", colour, "m[", rank, "]\033[0m ");
}

void LinePrinter::add(std::string_view text) {
  while (!text.empty()) {
    // "\r\n" is one end of line, also where it comes in two pieces.
    if (after_return_ && text.front() == '\n') {
      text.remove_prefix(1);
      after_return_ = false;
      continue;
    }
    // Progress bars end their lines with a carriage return.
    const auto end = text.find_first_of("\r\n");
    partial_ += text.substr(0, end);
    while (partial_.size() > kLongestLine) {
      print(std::string_view(partial_).substr(0, kLongestLine));
      partial_.erase(0, kLongestLine);
    }
    after_return_ = end != std::string_view::npos && text[end] == '\r';
    if (end == std::string_view::npos) {
      return;
    }
    print(partial_);
    partial_.clear();
    text.remove_prefix(end + 1);
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
  output_->push(concat(prefix_, line, "\n"));
}

}  // namespace trireme::detail
