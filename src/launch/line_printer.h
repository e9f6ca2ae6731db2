#pragma once

#include <deque>
#include <string>
#include <string_view>

#include "launch/output_queue.h"

namespace trireme::detail {

// Takes what one rank writes to one stream, in pieces of any size, and passes it on in whole
// lines, "[3] text", so that lines of several ranks never mix. Also keeps the
// last few lines for the moment when the rank fails.
class LinePrinter {
 public:
  static constexpr int kNoLabel = -1;

  // `colour` (an ANSI colour number) below 0 for none. `output` outlives the printer.
  LinePrinter(OutputQueue& output, int rank, int colour);

  // From the next line on.
  void relabel(int rank, int colour);
  void add(std::string_view text);
  // The stream has ended: an unfinished line is a line.
  void finish();
  bool has_label() const { return !prefix_.empty(); }
  const std::deque<std::string>& last_lines() const { return last_lines_; }

 private:
  void print(std::string_view line);

  OutputQueue* output_;
  std::string prefix_;
  std::string partial_;
  std::deque<std::string> last_lines_;
  bool after_return_ = false;  // the last byte was a carriage return
};

}  // namespace trireme::detail
