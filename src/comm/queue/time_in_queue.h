#pragma once

#include <algorithm>
#include <optional>

#include "comm/queue/operation_queue.h"

namespace trireme::detail {

// Adds the time that a caller spends in here to the books. Reading the clock takes 50 ns on some
// virtual machines, which is a part of a small operation that shows: what has been read is used.
class OperationQueue::Timer {
 public:
  explicit Timer(OperationQueue& queue) : queue_(queue) {}
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;
  ~Timer() {
    const auto spent = (end_ ? *end_ : Clock::now()) - begin_;
    queue_.nanoseconds_.fetch_add(
        std::chrono::duration_cast<std::chrono::nanoseconds>(spent).count(),
        std::memory_order_relaxed);
  }

  Clock::time_point begin() const { return begin_; }
  // What the caller came for was there at this time, perhaps before it came.
  void end(Clock::time_point when) { end_ = std::max(begin_, when); }

 private:
  OperationQueue& queue_;
  const Clock::time_point begin_ = Clock::now();
  std::optional<Clock::time_point> end_;
};

}  // namespace trireme::detail
