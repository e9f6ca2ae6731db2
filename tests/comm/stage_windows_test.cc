// The shared places through which ordinary memory passes are used again and again: windows of the
// stage within an operation, halves of it from operation to operation, slots after 32 operations.
// None may be filled again before everyone has emptied it, nor emptied before it is filled, however
// far some are ahead and wherever the others have stopped.
//
// Ranks are stopped in the middle of a copy, by pages that cannot be touched: the signal handler
// lets the rest of the world go on for a while, then opens the page. If a place is used too early,
// the rest of the copy has the wrong contents, and every byte is compared with a formula.

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <deque>
#include <functional>
#include <numeric>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "comm/shm/control.h"
#include "support/ranks.h"
#include "trireme/core/error.h"
#include "trireme/core/index.h"
#include "trireme/shard/range.h"

namespace trireme {
namespace {

using detail::index;

// --- memory that stops whoever touches it

constexpr std::int64_t kPageBytes = 4096;
constexpr std::size_t kArenaBytes = std::size_t{1} << 30;
constexpr long kStopNanoseconds = 15'000'000;

std::byte* arena = nullptr;
std::atomic<std::size_t> arena_used{0};
std::atomic<int> stop_count{0};

void open_page(int /*signal*/, siginfo_t* info, void* /*context*/) {
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  const auto begin = reinterpret_cast<std::uintptr_t>(arena);
  if (address < begin || address >= begin + kArenaBytes) {
    std::signal(SIGSEGV, SIG_DFL);  // somebody else's: it comes again, and ends the process
    return;
  }
  const timespec pause{0, kStopNanoseconds};
  nanosleep(&pause, nullptr);
  stop_count.fetch_add(1, std::memory_order_relaxed);
  std::byte* const page = arena + (address - begin) / kPageBytes * kPageBytes;
  if (mprotect(page, kPageBytes, PROT_READ | PROT_WRITE) != 0) {
    std::abort();
  }
}

class Arena {
 public:
  Arena() {
    void* const memory = mmap(nullptr,
                              kArenaBytes,
                              PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                              -1,
                              0);
    EXPECT_NE(memory, MAP_FAILED);
    arena = static_cast<std::byte*>(memory);
    arena_used = 0;
    stop_count = 0;
    struct sigaction action {};
    action.sa_sigaction = open_page;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &action, &before_);
  }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena() {
    sigaction(SIGSEGV, &before_, nullptr);
    munmap(arena, kArenaBytes);
    arena = nullptr;
  }

 private:
  struct sigaction before_ {};
};

// Begins in the middle of a page, so that pages do not begin where windows do.
constexpr std::int64_t kIntoPage = 1000;

std::uint8_t* take(std::int64_t bytes) {
  const auto pages = static_cast<std::size_t>((bytes + kIntoPage) / kPageBytes + 1);
  const std::size_t begin = arena_used.fetch_add(pages * kPageBytes);
  TRIREME_CHECK(begin + pages * kPageBytes <= kArenaBytes, "the arena of this test is too small");
  return reinterpret_cast<std::uint8_t*>(arena) + begin + kIntoPage;
}

// Stops whoever comes to the first page boundary from `offset` on; nobody where data ends before.
void stop_at(std::uint8_t* data, std::int64_t bytes, std::int64_t offset) {
  const std::int64_t page = (offset + kIntoPage + kPageBytes - 1) / kPageBytes * kPageBytes;
  if (page - kIntoPage < bytes) {
    ASSERT_EQ(mprotect(data - kIntoPage + page, kPageBytes, PROT_NONE), 0);
  }
}

// --- what the data is

std::uint8_t value(int operation, int rank, std::int64_t i) {
  std::uint64_t x = static_cast<std::uint64_t>(i) * 0x9E3779B97F4A7C15U +
                    static_cast<std::uint64_t>(operation * 61 + rank + 1) * 0xD6E8FEB86659FD93U;
  x = (x ^ (x >> 32)) * 0xD6E8FEB86659FD93U;
  return static_cast<std::uint8_t>(x >> 56);
}

constexpr std::uint8_t kNothing = 0xEE;

using Offsets = std::vector<std::int64_t>;

// The operations of one rank, several of which may be on their way.
class Operations {
 public:
  explicit Operations(World& world) : world_(world) {}

  // `stops`: where this rank is stopped in its own data.
  void broadcast(int root, std::int64_t bytes, const Offsets& stops = {}) {
    const int number = count_++;
    const bool sends = world_.rank() == root;
    std::uint8_t* const data = sends ? filled(number, bytes) : empty(bytes);
    stop(data, bytes, stops);
    on_its_way_.push_back({number,
                           world_.broadcast(span(data, bytes), root),
                           sends ? Offsets{} : Offsets{bytes},
                           [=](std::size_t, std::int64_t i) { return value(number, root, i); },
                           data,
                           sends ? data : nullptr,
                           bytes});
  }

  // `input_stops` in what this rank sends, `output_stops` in what the root receives.
  void gather(int root,
              const Counts& counts,
              const Offsets& input_stops = {},
              const Offsets& output_stops = {}) {
    const int number = count_++;
    const std::int64_t bytes = counts[index(world_.rank())];
    std::uint8_t* const input = filled(number, bytes);
    const std::int64_t total =
        world_.rank() == root ? std::accumulate(counts.begin(), counts.end(), std::int64_t{0}) : 0;
    std::uint8_t* const output = empty(total);
    stop(input, bytes, input_stops);
    stop(output, total, output_stops);
    on_its_way_.push_back(
        {number,
         world_.gather(span(input, bytes), span(output, total), root, counts),
         world_.rank() == root ? counts : Counts{},
         [=](std::size_t part, std::int64_t i) { return value(number, static_cast<int>(part), i); },
         output,
         input,
         bytes});
  }

  void all_gather(const Counts& counts, const Offsets& input_stops, const Offsets& output_stops) {
    const int number = count_++;
    const std::int64_t bytes = counts[index(world_.rank())];
    std::uint8_t* const input = filled(number, bytes);
    const std::int64_t total = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
    std::uint8_t* const output = empty(total);
    stop(input, bytes, input_stops);
    stop(output, total, output_stops);
    on_its_way_.push_back(
        {number,
         world_.all_gather(span(input, bytes), span(output, total), counts),
         counts,
         [=](std::size_t part, std::int64_t i) { return value(number, static_cast<int>(part), i); },
         output,
         input,
         bytes});
  }

  void scatter(int root, const Counts& counts, const Offsets& stops) {
    const int number = count_++;
    const bool sends = world_.rank() == root;
    const std::int64_t total = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
    const std::int64_t begin =
        std::accumulate(counts.begin(), counts.begin() + world_.rank(), std::int64_t{0});
    const std::int64_t bytes = counts[index(world_.rank())];
    std::uint8_t* const input = sends ? filled(number, total) : empty(0);
    std::uint8_t* const output = empty(bytes);
    stop(sends ? input : output, sends ? total : bytes, stops);
    on_its_way_.push_back(
        {number,
         world_.scatter(span(input, sends ? total : 0), span(output, bytes), root, counts),
         {bytes},
         [=](std::size_t, std::int64_t i) { return value(number, root, begin + i); },
         output,
         input,
         sends ? total : 0});
  }

  // Of bytes, which wrap around: so does the formula.
  void all_reduce(std::int64_t bytes, const Offsets& stops) {
    const int number = count_++;
    const int ranks = world_.size();
    std::uint8_t* const data = filled(number, bytes);
    stop(data, bytes, stops);
    on_its_way_.push_back({number,
                           world_.all_reduce(span(data, bytes)),
                           {bytes},
                           [=](std::size_t, std::int64_t i) {
                             unsigned sum = 0;
                             for (int rank = 0; rank < ranks; ++rank) {
                               sum += value(number, rank, i);
                             }
                             return static_cast<std::uint8_t>(sum);
                           },
                           data,
                           nullptr,
                           0});
  }

  void barrier() {
    const int number = count_++;
    on_its_way_.push_back({number, world_.barrier(), {}, {}, nullptr, nullptr, 0});
  }

  std::size_t on_their_way() const { return on_its_way_.size(); }

  // Waits for the oldest; what it had is this rank's again, and put to another use.
  void finish_one() {
    OnItsWay operation = std::move(on_its_way_.front());
    on_its_way_.pop_front();
    operation.work.wait();
    const std::uint8_t* found = operation.output;
    for (std::size_t part = 0; part < operation.parts.size(); ++part) {
      for (std::int64_t i = 0; i < operation.parts[part]; ++i, ++found) {
        const std::uint8_t expected = operation.expected(part, i);
        if (*found != expected) {
          ADD_FAILURE() << "operation " << operation.number << " on rank " << world_.rank()
                        << " of " << world_.size() << ": byte " << i << " of part " << part << " ("
                        << operation.parts[part] << " bytes) is " << int{*found} << " instead of "
                        << int{expected};
          break;
        }
      }
    }
    if (operation.input != nullptr) {
      std::fill_n(operation.input, operation.input_bytes, kNothing);
    }
  }

  void finish() {
    while (!on_its_way_.empty()) {
      finish_one();
    }
  }

 private:
  struct OnItsWay {
    int number;
    Work work;
    Counts parts;  // of the output, one after another: how long they are,
    std::function<std::uint8_t(std::size_t part, std::int64_t i)> expected;  // and what is in them
    const std::uint8_t* output;
    std::uint8_t* input;
    std::int64_t input_bytes;
  };

  std::uint8_t* filled(int number, std::int64_t bytes) const {
    std::uint8_t* const data = take(bytes);
    for (std::int64_t i = 0; i < bytes; ++i) {
      data[i] = value(number, world_.rank(), i);
    }
    return data;
  }
  static std::uint8_t* empty(std::int64_t bytes) {
    std::uint8_t* const data = take(bytes);
    std::fill_n(data, bytes, kNothing);
    return data;
  }
  static void stop(std::uint8_t* data, std::int64_t bytes, const Offsets& offsets) {
    for (const std::int64_t offset : offsets) {
      stop_at(data, bytes, offset);
    }
  }
  static Span span(std::uint8_t* data, std::int64_t bytes) {
    return {reinterpret_cast<std::byte*>(data), bytes, Dtype::kUint8};
  }

  World& world_;
  int count_ = 0;
  std::deque<OnItsWay> on_its_way_;
};

// Windows of 2 KiB, eight of them: whatever is too long for a slot comes round to the first again.
constexpr std::int64_t kSmallWindow = 2048;
void with_small_windows(InitOptions& options) {
  options.stage_bytes = 8 * kSmallWindow;
  options.kernel_copy = "off";
}

// What just passes through the stage never comes round: halves are all that keeps operations apart.
constexpr std::int64_t kWideWindow = 8192;
void with_wide_windows(InitOptions& options) {
  options.stage_bytes = 8 * kWideWindow;
  options.kernel_copy = "off";
}

// Where pages are larger, a stop in one window would be one in others as well.
class SmallPages : public ::testing::Environment {
  void SetUp() override {
    if (sysconf(_SC_PAGESIZE) != kPageBytes) {
      GTEST_SKIP() << "pages have " << sysconf(_SC_PAGESIZE) << " bytes";
    }
  }
};
const auto* const kSmallPages = ::testing::AddGlobalTestEnvironment(new SmallPages);

class StageWindows : public ::testing::TestWithParam<int> {
 protected:
  static int ranks() { return GetParam(); }
  // Who comes after `root`, so that over all roots every rank is the slow one.
  static int after(int root, int places) { return (root + places) % ranks(); }

  Arena arena_;
};

// The root is ahead by as many windows as there are, and has to stop there.
TEST_P(StageWindows, AreNotFilledAgainWhileSomebodyEmptiesThem) {
  testing::spawn_world(
      ranks(),
      [](World& world) {
        Operations operations(world);
        for (int root = 0; root < ranks(); ++root) {
          const int slow = after(root, 1 + root % (ranks() - 1));
          operations.broadcast(
              root,
              29 * kSmallWindow + 13,
              world.rank() == slow
                  ? Offsets{0, 3 * kSmallWindow, 8 * kSmallWindow, 17 * kSmallWindow}
                  : Offsets{});
          operations.finish();
        }
      },
      with_small_windows);
  EXPECT_GE(stop_count.load(), 4 * ranks());
}

TEST_P(StageWindows, AreNotFilledAgainWhileTheRootOfAGatherEmptiesThem) {
  testing::spawn_world(
      ranks(),
      [](World& world) {
        Operations operations(world);
        for (int root = 0; root < ranks(); ++root) {
          Counts counts(index(ranks()), 21 * kSmallWindow + 7);
          counts[index(after(root, 1))] = 26 * kSmallWindow + 1;
          const std::int64_t first = counts[0];
          operations.gather(
              root, counts, {}, {kSmallWindow, 9 * kSmallWindow, first, first + 12 * kSmallWindow});
          operations.finish();
        }
      },
      with_small_windows);
  EXPECT_GE(stop_count.load(), 4 * ranks());
}

// Those who empty windows are ahead, and have to wait until they are filled.
TEST_P(StageWindows, AreNotEmptiedBeforeTheyAreFilled) {
  testing::spawn_world(
      ranks(),
      [](World& world) {
        Operations operations(world);
        for (int root = 0; root < ranks(); ++root) {
          const std::int64_t bytes = 20 * kSmallWindow + 1;
          const Offsets stops = {0, 5 * kSmallWindow, 10 * kSmallWindow, 16 * kSmallWindow};
          operations.broadcast(root, bytes, world.rank() == root ? stops : Offsets{});
          operations.gather(root,
                            Counts(index(ranks()), bytes),
                            world.rank() == after(root, 1) ? stops : Offsets{});
          operations.finish();
        }
      },
      with_small_windows);
  EXPECT_GE(stop_count.load(), 8 * ranks());
}

// Operations that fit into half of the stage: who fills waits for nobody in them, and is ahead by
// whole operations.
TEST_P(StageWindows, HalvesAreNotFilledAgainWhileSomebodyEmptiesThem) {
  testing::spawn_world(
      ranks(),
      [](World& world) {
        Operations operations(world);
        for (int root = 0; root < ranks(); ++root) {
          const int slow = after(root, 1);
          for (int turn = 0; turn < 7; ++turn) {
            operations.broadcast(
                root,
                3 * kWideWindow + turn,
                world.rank() == slow && turn % 3 == 1 ? Offsets{kWideWindow / 2} : Offsets{});
          }
          operations.finish();
        }
      },
      with_wide_windows);
  EXPECT_GE(stop_count.load(), 2 * ranks());
}

TEST_P(StageWindows, HalvesAreKeptApartWhereRootsAlternate) {
  testing::spawn_world(
      ranks(),
      [](World& world) {
        Operations operations(world);
        for (int turn = 0; turn < 24; ++turn) {
          // Two of one root, a gather to the next, one of that: each half gets each kind.
          const int root = after(0, turn / 3);
          const Offsets stop = world.rank() == after(root, 1) ? Offsets{kWideWindow} : Offsets{};
          if (turn % 4 == 3) {
            operations.gather(after(root, 1),
                              Counts(index(ranks()), 2 * kWideWindow + 1 + turn),
                              {},
                              {kWideWindow, 3 * kWideWindow});
          } else {
            operations.broadcast(root, 4 * kWideWindow - turn, turn % 2 == 0 ? stop : Offsets{});
          }
        }
        operations.finish();
      },
      with_wide_windows);
  EXPECT_GE(stop_count.load(), 12);
}

// Short data travels in slots, which are used again after 32 operations.
TEST_P(StageWindows, SlotsAreNotFilledAgainWhileSomebodyReadsThem) {
  testing::spawn_world(
      ranks(),
      [](World& world) {
        Operations operations(world);
        for (int turn = 0; turn < 4 * static_cast<int>(detail::kSlots); ++turn) {
          const int root = after(0, turn / 40);
          const bool stopped = turn % 13 == 5 && world.rank() == after(root, 1);
          if (turn % 7 == 6) {
            operations.gather(
                root, Counts(index(ranks()), 9'000), {}, stopped ? Offsets{1} : Offsets{});
          } else {
            operations.broadcast(
                root, std::int64_t{detail::kEagerBytes}, stopped ? Offsets{1} : Offsets{});
          }
        }
        operations.finish();
      },
      with_small_windows);
  EXPECT_GE(stop_count.load(), 8);
}

INSTANTIATE_TEST_SUITE_P(Ranks, StageWindows, ::testing::Values(2, 3, 5), [](const auto& tested) {
  return std::to_string(tested.param);
});

// --- everything at once

struct Mixture {
  const char* name;
  int ranks;
  bool processes;
  bool kernel_copy;
  bool progress_thread;
  bool default_stage;
  std::uint32_t steps_before_wrap;  // 0: the counters do not wrap around
};

void PrintTo(const Mixture& mixture, std::ostream* out) {
  *out << mixture.name;
}

// Lengths around the limits of slots, windows, eight of them, and of what is cut into four.
std::vector<std::int64_t> lengths_of(const Mixture& mixture) {
  std::vector<std::int64_t> lengths = {0, 1, 16'411, 20'011, 40'009};  // two short ones and primes
  const std::int64_t limits_by_default[] = {16 << 10, 32 << 10, 64 << 10, 256 << 10, 512 << 10};
  const std::int64_t limits_of_small[] = {16 << 10,
                                          9 * kSmallWindow,
                                          10 * kSmallWindow,
                                          15 * kSmallWindow,
                                          16 * kSmallWindow,
                                          17 * kSmallWindow};
  const auto add = [&](const auto& limits) {
    for (const std::int64_t limit : limits) {
      lengths.insert(lengths.end(), {limit - 1, limit, limit + 1});
    }
  };
  if (mixture.default_stage) {
    add(limits_by_default);
  } else {
    add(limits_of_small);
  }
  return lengths;
}

// The same on every rank where the seed is.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : state_(seed * 2 + 1) {}
  int roll(int sides) {
    state_ = state_ * 6364136223846793005U + 1442695040888963407U;
    return static_cast<int>((state_ >> 33) % static_cast<std::uint64_t>(sides));
  }

 private:
  std::uint64_t state_;
};

class StageMixture : public ::testing::TestWithParam<Mixture> {
 protected:
  StageMixture() {
    if (GetParam().steps_before_wrap > 0) {
      const std::uint32_t first = std::uint32_t{0} - GetParam().steps_before_wrap;
      setenv(detail::kEnvFirstCount, std::to_string(first).c_str(), 1);
    }
  }
  ~StageMixture() override { unsetenv(detail::kEnvFirstCount); }

  Arena arena_;
};

void run_mixture(World& world, const Mixture& mixture) {
  const std::vector<std::int64_t> lengths = lengths_of(mixture);
  Dice shared(17);
  Dice own(100 + static_cast<std::uint64_t>(world.rank()));
  // Memory that the kernel is to read for another process must be there.
  const bool stoppable = !(mixture.processes && mixture.kernel_copy);
  const auto stops = [&](std::int64_t bytes) {
    return stoppable && bytes > 0 && own.roll(8) == 0 ? Offsets{own.roll(static_cast<int>(bytes))}
                                                      : Offsets{};
  };
  const auto length = [&] { return lengths[index(shared.roll(static_cast<int>(lengths.size())))]; };
  Operations operations(world);
  for (int turn = 0; turn < 120; ++turn) {
    const int kind = shared.roll(10);
    const int root = shared.roll(world.size());
    Counts counts;
    for (int rank = 0; rank < world.size(); ++rank) {
      counts.push_back(length());
    }
    const std::int64_t mine = counts[index(world.rank())];
    if (kind < 4) {
      operations.broadcast(root, counts[0], stops(counts[0]));
    } else if (kind < 7) {
      operations.gather(root, counts, stops(mine), stops(mine));
    } else if (kind == 7) {
      operations.all_gather(counts, stops(mine), stops(mine));
    } else if (kind == 8) {
      operations.scatter(root, counts, stops(mine));
    } else if (shared.roll(3) > 0) {
      operations.all_reduce(counts[0], stops(counts[0]));
    } else {
      operations.barrier();
    }
    // Each rank is as far ahead as it likes.
    const auto most = static_cast<std::size_t>(1 + own.roll(12));
    while (operations.on_their_way() > most) {
      operations.finish_one();
    }
  }
  operations.finish();
}

TEST_P(StageMixture, EveryByteArrives) {
  const Mixture& mixture = GetParam();
  const auto adjust = [&](InitOptions& options) {
    if (!mixture.default_stage) {
      options.stage_bytes = 8 * kSmallWindow;
    }
    options.kernel_copy = mixture.kernel_copy ? "auto" : "off";
    options.progress_thread = mixture.progress_thread;
  };
  const auto body = [&](World& world) { run_mixture(world, mixture); };
  if (mixture.processes) {
    testing::fork_world(mixture.ranks, body, adjust);
  } else {
    testing::spawn_world(mixture.ranks, body, adjust);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Ways,
    StageMixture,
    ::testing::Values(Mixture{"TwoThreads", 2, false, false, false, false, 0},
                      Mixture{"ThreeThreads", 3, false, false, false, false, 50},
                      Mixture{"FiveThreads", 5, false, false, false, false, 1},
                      Mixture{"ThreeThreadsInOneCopy", 3, false, true, false, false, 200},
                      Mixture{"TwoThreadsWithHelpers", 2, false, false, true, false, 7},
                      Mixture{"ThreeThreadsWithHelpers", 3, false, false, true, false, 100},
                      Mixture{"TwoProcesses", 2, true, false, false, true, 33},
                      Mixture{"ThreeProcesses", 3, true, false, false, true, 0},
                      Mixture{"FiveProcesses", 5, true, false, false, false, 120},
                      Mixture{"ThreeProcessesInOneCopy", 3, true, true, false, true, 90}),
    [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace trireme
