#pragma once

#include <deque>
#include <string>
#include <string_view>

namespace trireme::detail {

// Takes what one rank writes to one stream, in pieces of any size, and passes it on in whole
// lines, "[3] text", each in one write, so that lines of several ranks never mix. Also keeps the
// last few lines for the moment when the rank fails.
class LinePrinter {
 public:
  // Writes to `fd`; `colour` (an ANSI colour number) below 0 for none.
  LinePrinter(int fd, int rank, int colour);

  void add(std::string_view text);
  // The stream has ended: an unfinished line is a line.
  void finish();
  // False once nobody reads what is printed any more.
  bool readable() const { return readable_; }
  const std::deque<std::string>& last_lines() const { return last_lines_; }

 private:
  void print(std::string_view line);

  int fd_;
  std::string prefix_;
  std::string partial_;
  std::deque<std::string> last_lines_;
  bool readable_ = true;
};

}  // namespace trireme::detail
