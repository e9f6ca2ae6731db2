#pragma once

#include "comm/queue/operation_queue.h"

namespace trireme::detail {

// Adds the time that a caller spends in here to the books.
class OperationQueue::Timer {
 public:
  explicit Timer(OperationQueue& queue) : queue_(queue) {}
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;
  ~Timer() {
    queue_.nanoseconds_.fetch_add(
        std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin_).count(),
        std::memory_order_relaxed);
  }

 private:
  OperationQueue& queue_;
  Clock::time_point begin_ = Clock::now();
};

}  // namespace trireme::detail
