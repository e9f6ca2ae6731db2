#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace trireme::detail {

// Note [resting]
// Checksums and the disk's transfers take memory bandwidth from the training. Nobody needs a
// checkpoint at once that is written in the background: after each piece the thread that writes
// rests for twice as long as that took, until somebody waits for it.
class WritingPace {
 public:
  // Before the thread begins.
  void begin(bool awaited) {
    const std::lock_guard lock(mutex_);
    awaited_ = awaited;
  }
  // On the thread.
  void rest(std::chrono::steady_clock::duration worked) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kRest * worked, [this] { return awaited_; });
  }
  // Somebody waits.
  void hurry() {
    const std::lock_guard lock(mutex_);
    awaited_ = true;
    changed_.notify_all();
  }

 private:
  static constexpr int kRest = 2;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool awaited_ = false;
};

}  // namespace trireme::detail
