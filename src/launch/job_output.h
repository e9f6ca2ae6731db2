#pragma once

#include <string>

#include <unistd.h>

#include "launch/output_queue.h"
#include "launch/signal_watch.h"
#include "trireme/core/deadline.h"

namespace trireme::detail {

// What a job prints: the lines of its ranks, and what the launcher itself has to say.
class JobOutput {
 public:
  OutputQueue& lines() { return lines_; }
  OutputQueue& errors() { return errors_; }
  bool full() const { return lines_.full() || errors_.full(); }

  void complain(const std::string& message);
  // Writes what can be written now. True when it has just turned out that nobody reads any more, or
  // that it cannot be written: a full disk, for which why_lost() has words.
  bool flush();
  std::string why_lost() const;  // empty: nobody reads
  // At the end: what is still to be written, unless the reader does not read, or a signal comes.
  void finish(Milliseconds patience, const SignalWatch& signals);

 private:
  OutputQueue lines_{STDOUT_FILENO};
  OutputQueue errors_{STDERR_FILENO};
  bool lost_ = false;
};

}  // namespace trireme::detail
