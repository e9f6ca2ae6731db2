#pragma once

#include <signal.h>

#include "trireme/core/file_descriptor.h"

namespace trireme::detail {

// The signals of the launcher, read from a descriptor instead of interrupting it. Blocks them while
// it lives.
class SignalWatch {
 public:
  SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;
  ~SignalWatch();

  int fd() const { return fd_.get(); }
  // The next signal that has come; 0 when there is none.
  int next() const;

  // Signals that ask for the end of the job, and those that are simply passed on to the ranks.
  static bool asks_to_end(int number);
  static bool is_passed_on(int number);

 private:
  sigset_t before_{};
  FileDescriptor fd_;
};

}  // namespace trireme::detail
