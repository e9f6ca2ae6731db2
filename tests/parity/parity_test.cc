// One plain process = DDP = ZeRO-1 = ZeRO-2 = ZeRO-3 mapped = ZeRO-3 copied, on 1 to 5 ranks, bit
// for bit, after 20 steps of 12 micro-batches.

#include <cstring>

#include <gtest/gtest.h>
#include <sys/mman.h>

#include "parity/case.h"
#include "support/ranks.h"

namespace trireme {
namespace {

using testing::Case;
using testing::Result;

struct Mode {
  const char* name;
  int zero;
  Placement placement;
};
constexpr Mode kModes[] = {
    {"DDP", 0, Placement::kAutomatic},
    {"ZeRO-1", 1, Placement::kAutomatic},
    {"ZeRO-2", 2, Placement::kAutomatic},
    {"ZeRO-3 mapped", 3, Placement::kMapped},
    {"ZeRO-3 copied", 3, Placement::kCopied},
};

// Results that processes leave for each other.
class Board {
 public:
  static constexpr std::size_t kBytes = 1 << 18;

  explicit Board(std::size_t count)
      : data_(static_cast<char*>(mmap(
            nullptr, count * kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
  void put(std::size_t i, const Result& result) const {
    const std::size_t size = result.size();
    ASSERT_LE(size + sizeof(size), kBytes);
    std::memcpy(data_ + i * kBytes, &size, sizeof(size));
    std::memcpy(data_ + i * kBytes + sizeof(size), result.data(), size);
  }
  Result get(std::size_t i) const {
    std::size_t size = 0;
    std::memcpy(&size, data_ + i * kBytes, sizeof(size));
    const char* from = data_ + i * kBytes + sizeof(size);
    return {from, from + size};
  }

 private:
  char* data_;
};

std::string first_difference(const Result& a, const Result& b) {
  if (a.size() != b.size()) {
    return "sizes " + std::to_string(a.size()) + " and " + std::to_string(b.size());
  }
  std::size_t differing = 0;
  std::size_t first = a.size();
  for (std::size_t i = 0; i + 4 <= a.size(); i += 4) {
    if (std::memcmp(&a[i], &b[i], 4) != 0) {
      ++differing;
      first = std::min(first, i);
    }
  }
  return std::to_string(differing) + " of " + std::to_string(a.size() / 4) +
         " words differ, the first is " + std::to_string(first / 4);
}

// One group of processes for each world size goes through all cases and modes.
void compare_everywhere(const std::vector<Case>& cases, const Board& board, int world_size) {
  ASSERT_TRUE(world_size % testing::sum_group() == 0 || testing::sum_group() % world_size == 0)
      << "groups of " << testing::sum_group() << " do not fit " << world_size
      << " ranks: a filter has to leave this world out";
  testing::fork_ranks(world_size, [&, job = testing::unique_job()](int rank) {
    at::set_num_threads(1);
    const auto world = init(testing::options_for(job, rank, world_size));
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const Result expected = board.get(i);
      ASSERT_FALSE(expected.empty()) << cases[i].name;
      for (const Mode& mode : kModes) {
        EngineOptions options = cases[i].options;
        options.zero = mode.zero;
        options.placement = mode.placement;
        if (!world->one_machine() && mode.placement == Placement::kMapped) {
          options.placement = Placement::kAutomatic;
        }
        const Result found = testing::train_with_engine(cases[i], options, world);
        // The norms are those of ranks that had the last micro-batch: all of them here know them.
        ASSERT_EQ(found.size(), expected.size());
        EXPECT_EQ(std::memcmp(found.data(), expected.data(), found.size()), 0)
            << cases[i].name << ", " << mode.name << ", rank " << rank << " of " << world_size
            << ": " << first_difference(found, expected);
      }
    }
  });
}

class ParityTest : public ::testing::TestWithParam<int> {};

TEST_P(ParityTest, EveryModeGivesTheBitsOfOnePlainProcess) {
  const std::vector<Case> cases = testing::float32_cases();
  static const Board board(cases.size());
  static bool ready = false;
  if (!ready) {
    // In a process of its own: LibTorch allows no autograd in a process forked after it.
    testing::fork_ranks(1, [&](int) {
      at::set_num_threads(1);
      for (std::size_t i = 0; i < cases.size(); ++i) {
        board.put(i, testing::train_plainly(cases[i]));
      }
    });
    ready = true;
  }
  compare_everywhere(cases, board, GetParam());
}

TEST_P(ParityTest, HalfPrecisionIsTheSameInEveryMode) {
  const std::vector<Case> cases = testing::half_cases();
  static const Board board(cases.size());
  static bool ready = false;
  if (!ready) {
    testing::fork_ranks(1, [&](int) {
      at::set_num_threads(1);
      for (std::size_t i = 0; i < cases.size(); ++i) {
        board.put(i, testing::train_with_engine(cases[i], cases[i].options, init()));
      }
    });
    ready = true;
  }
  compare_everywhere(cases, board, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Worlds, ParityTest, ::testing::Values(1, 2, 3, 4, 5));

}  // namespace
}  // namespace trireme
