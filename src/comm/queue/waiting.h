#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "trireme/core/deadline.h"

// What every wait for peers goes by, whatever is between them.

namespace trireme::detail {

// Between two looks at whether the peers are alive.
inline constexpr auto kCheckInterval = std::chrono::milliseconds(10);

// When a waiting thread's last look is this long ago, this process itself was stopped (Ctrl-Z, a
// debugger), and that time is not the peers' fault.
inline constexpr auto kStoppedMyself = std::chrono::seconds(1);

// In a copy of the process that fork made: threads do not come along, and what they held or waited
// for cannot be taken down there. It stays until the copy ends.
template <class T>
void keep_in_forked_child(std::shared_ptr<T> shared) {
  new std::shared_ptr<T>(std::move(shared));  // NOLINT(clang-analyzer-cplusplus.NewDeleteLeaks)
}

// The deadline of those who only poll, from their first poll on. While they did something else for
// long, or were stopped, they could not have seen anything come: that time does not count.
class PollPatience {
 public:
  const Deadline& at_poll(Milliseconds timeout) {
    const auto now = Clock::now();
    if (!deadline_) {
      deadline_.emplace(timeout, now);
    } else if (now - last_poll_ > kStoppedMyself) {
      deadline_->extend(now - last_poll_);
    }
    last_poll_ = now;
    return *deadline_;
  }

 private:
  std::optional<Deadline> deadline_;
  Clock::time_point last_poll_{};
};

}  // namespace trireme::detail
