#pragma once

#include "parallel/memory/neighbour_watch.h"
#include "parallel/memory/shared_word.h"

namespace trireme::detail {

// A lock in memory that the ranks of a machine share, zero at first. Whoever waits for it learns
// of the death of any of them, its holder's too: what it guards is of no more use then.
class MachineLock {
 public:
  class Hold {
   public:
    // `rank` is this one's number on the machine. Throws CommError (NeighbourWatch::look).
    Hold(MachineLock& lock, int rank, NeighbourWatch& watch) : word_(lock.word_) {
      const auto mine = static_cast<std::uint32_t>(rank) + 1;
      std::uint32_t seen = 0;
      if (word_.compare_exchange_strong(seen, mine, std::memory_order_acquire)) {
        return;
      }
      for (;;) {
        if (seen == 0) {
          // Others may sleep, too: whoever has it next wakes one of them.
          if (word_.compare_exchange_strong(seen, mine | kSleepers, std::memory_order_acquire)) {
            return;
          }
          continue;
        }
        if ((seen & kSleepers) == 0 && !word_.compare_exchange_strong(seen, seen | kSleepers)) {
          continue;
        }
        const std::uint32_t held = seen | kSleepers;
        sleep_on(word_, held, NeighbourWatch::kInterval);
        seen = word_.load();
        if (seen == held) {
          watch.look(static_cast<int>((held & ~kSleepers) - 1), "looks for room for parameters");
        }
      }
    }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;
    ~Hold() {
      if ((word_.exchange(0, std::memory_order_release) & kSleepers) != 0) {
        wake(word_, 1);
      }
    }

   private:
    SharedWord& word_;
  };

 private:
  static constexpr std::uint32_t kSleepers = std::uint32_t{1} << 31;

  SharedWord word_{0};  // 0: free; else its holder's number and one
};

}  // namespace trireme::detail
