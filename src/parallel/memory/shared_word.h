#pragma once

#include <atomic>
#include <climits>
#include <cstdint>
#include <ctime>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "trireme/core/deadline.h"

// Words in memory that processes share, and sleep on. One that is killed in its sleep leaves
// nothing behind. (A process-shared pthread_cond_t would count it for good, and its next broadcast
// but one would wait for it.)

namespace trireme::detail {

using SharedWord = std::atomic<std::uint32_t>;
static_assert(SharedWord::is_always_lock_free && sizeof(SharedWord) == sizeof(std::uint32_t));

// Returns when the word has another value and somebody rings, after `most`, or for no reason.
inline void sleep_on(SharedWord& word, std::uint32_t value, Milliseconds most) {
  const timespec limit{most.count() / 1000, most.count() % 1000 * 1'000'000};
  syscall(SYS_futex, &word, FUTEX_WAIT, value, &limit, nullptr, 0);
}

inline void wake(SharedWord& word, int sleepers) {
  syscall(SYS_futex, &word, FUTEX_WAKE, sleepers, nullptr, nullptr, 0);
}

inline void wake_all(SharedWord& word) {
  wake(word, INT_MAX);
}

}  // namespace trireme::detail
