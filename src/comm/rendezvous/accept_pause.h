#pragma once

#include <cerrno>
#include <optional>

#include "trireme/core/deadline.h"

namespace trireme::detail {

// accept() that fails for want of a descriptor, or of memory, leaves the connection where it was
// and the listener ready: whoever polls that again at once does nothing else. After such a failure
// the listener is left alone for a while; others that are here may end meanwhile.
class AcceptPause {
 public:
  // After an accept() that gave nothing, with its errno. True when it is the first that failed so,
  // which is worth a word.
  bool failed(int error) {
    if (error != EMFILE && error != ENFILE && error != ENOBUFS && error != ENOMEM) {
      return false;
    }
    pause_.emplace(kPause);
    const bool is_first = !seen_;
    seen_ = true;
    return is_first;
  }

  bool over() const { return !pause_ || pause_->passed(); }

 private:
  static constexpr Milliseconds kPause{100};

  std::optional<Deadline> pause_;
  bool seen_ = false;
};

}  // namespace trireme::detail
