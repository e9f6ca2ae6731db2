#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include <sched.h>

namespace trireme::detail {

inline void relax_processor() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Note [turns]
// A thread that waits keeps the lock nearly all the time, over a transport its rests included, as
// that is for one thread at a time: communicators over one transport share their turns. A
// std::mutex is not fair: let go and taken again at once, it stays with the thread that had it, and
// another one that wants to issue what the first waits for never gets in. So whoever finds it taken
// counts itself, ends the rest, and is let in between two looks.
class Turns {
 public:
  using Lock = std::unique_lock<std::mutex>;

  // `wake` ends the rest of the thread that has the lock.
  template <class Wake>
  Lock enter(const Wake& wake) {
    Lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock()) {
      waiting_.fetch_add(1);
      wake();
      // The other one lets go at once where it looks: that is sooner than a sleep would end.
      for (int spin = 0; spin < kSpins && !lock.try_lock(); ++spin) {
        relax_processor();
      }
      if (!lock.owns_lock()) {
        lock.lock();
      }
      waiting_.fetch_sub(1);
      entered_.fetch_add(1);
    }
    return lock;
  }
  Lock try_enter() { return {mutex_, std::try_to_lock}; }

  bool somebody_waits() const { return waiting_.load(std::memory_order_relaxed) > 0; }
  // Lets go, until one of those who wait has come in.
  void pass(Lock& lock) {
    const std::uint32_t before = entered_;
    lock.unlock();
    while (waiting_ > 0 && entered_ == before) {
      sched_yield();
    }
  }

 private:
  static constexpr int kSpins = 200;

  std::mutex mutex_;
  std::atomic<int> waiting_{0};            // threads that wait for the mutex
  std::atomic<std::uint32_t> entered_{0};  // how often one of them has got it
};

}  // namespace trireme::detail
