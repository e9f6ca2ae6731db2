#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace trireme::detail {

// What waits to be written to one of the launcher's own streams. Never blocks: a reader that stops
// reading (a pager, Ctrl-S) must not keep the launcher from its signals and its ranks.
class OutputQueue {
 public:
  explicit OutputQueue(int fd) : fd_(fd) {}

  void push(std::string_view text) {
    if (lost_ == 0) {
      waiting_ += text;
    }
  }
  // Writes what can be written now.
  void flush();

  int fd() const { return fd_; }
  bool empty() const { return waiting_.empty(); }
  // More should not be taken from the ranks before some of this is gone.
  bool full() const { return waiting_.size() > kMost; }
  // Nobody reads this stream any more, or it cannot be written.
  bool lost() const { return lost_ != 0; }
  int why_lost() const { return lost_; }  // as errno has it

 private:
  static constexpr std::size_t kMost = 1 << 20;

  int fd_;
  std::string waiting_;
  int lost_ = 0;
};

}  // namespace trireme::detail
