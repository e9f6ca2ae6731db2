#include "trireme/shard/partition.h"

#include <random>

#include <gtest/gtest.h>

#include "trireme/core/error.h"
#include "trireme/shard/memory_formula.h"

namespace trireme {
namespace {

constexpr std::int64_t kLine = 16;  // float32 elements in 64 bytes

FlatLayout random_layout(unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::int64_t> numels(random() % 12);
  for (auto& numel : numels) {
    numel = static_cast<std::int64_t>(random() % 2 == 0 ? random() % 20 : random() % 3000);
  }
  return {numels, Dtype::kFloat32};
}

// One range per rank, in order, covering the buffer once, cut between cache lines.
void expect_cover(const std::vector<Range>& ranges, const FlatLayout& layout, int world) {
  ASSERT_EQ(static_cast<int>(ranges.size()), world);
  std::int64_t next = 0;
  for (const Range& range : ranges) {
    EXPECT_EQ(range.begin, next);
    EXPECT_LE(range.begin, range.end);
    EXPECT_EQ(range.begin % kLine, 0);
    next = range.end;
  }
  EXPECT_EQ(next, layout.total_numel());
}

TEST(FlatLayout, AlignsEveryParameter) {
  const FlatLayout layout({1, 16, 17, 0, 5}, Dtype::kFloat32);
  EXPECT_EQ(layout.offset(0), 0);
  EXPECT_EQ(layout.offset(1), 16);
  EXPECT_EQ(layout.offset(2), 32);
  EXPECT_EQ(layout.offset(3), 64);
  EXPECT_EQ(layout.offset(4), 64);
  EXPECT_EQ(layout.total_numel(), 80);
  EXPECT_EQ(layout.parameters_numel(), 39);
  EXPECT_EQ(FlatLayout({1, 1}, Dtype::kBFloat16).offset(1), 32);
  EXPECT_THROW(layout.pieces({0, 81}), ConfigError);
}

TEST(FlatLayout, PiecesOfAnyCutCoverEveryElementOnce) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    const FlatLayout layout = random_layout(seed);
    std::mt19937 random(seed + 1000);
    std::vector<std::int64_t> seen(layout.count(), 0);
    for (std::int64_t begin = 0; begin < layout.total_numel();) {
      const std::int64_t end = std::min<std::int64_t>(
          layout.total_numel(), begin + 1 + static_cast<std::int64_t>(random() % 500));
      for (const Piece& piece : layout.pieces({begin, end})) {
        EXPECT_EQ(piece.begin, seen[piece.parameter]);
        EXPECT_EQ(piece.offset, layout.offset(piece.parameter) + piece.begin);
        EXPECT_GT(piece.numel, 0);
        seen[piece.parameter] += piece.numel;
      }
      begin = end;
    }
    for (std::size_t parameter = 0; parameter < layout.count(); ++parameter) {
      EXPECT_EQ(seen[parameter], layout.numel(parameter));
    }
  }
}

TEST(Partition, EveryStrategyCoversTheBufferOnce) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    const FlatLayout layout = random_layout(seed);
    std::vector<std::int64_t> rows(layout.count(), 7);
    for (int world = 1; world <= 9; ++world) {
      expect_cover(partition_by_element(layout, world), layout, world);
      expect_cover(partition_by_layer(layout, world), layout, world);
      expect_cover(partition_by_dimension(layout, rows, world), layout, world);
      std::vector<double> weights;
      for (int rank = 0; rank < world; ++rank) {
        weights.push_back(rank % 3);
      }
      weights.back() += 0.5;
      expect_cover(partition_by_weight(layout, weights), layout, world);
    }
  }
}

TEST(Partition, ByElementIsBalancedToACacheLine) {
  const FlatLayout layout({100'003, 7}, Dtype::kFloat32);
  const auto ranges = partition_by_element(layout, 7);
  expect_cover(ranges, layout, 7);
  for (const Range& range : ranges) {
    EXPECT_NEAR(
        static_cast<double>(range.size()), static_cast<double>(layout.total_numel()) / 7, kLine);
  }
}

TEST(Partition, ByWeightIsInProportion) {
  const FlatLayout layout({96'000}, Dtype::kFloat32);
  const auto ranges = partition_by_weight(layout, {1, 0, 2});
  EXPECT_EQ(ranges[0].size(), 32'000);
  EXPECT_TRUE(ranges[1].empty());
  EXPECT_EQ(ranges[2].size(), 64'000);
  EXPECT_THROW(partition_by_weight(layout, {0, 0}), ConfigError);
  EXPECT_THROW(partition_by_weight(layout, {1, -1}), ConfigError);
}

TEST(Partition, ByLayerKeepsParametersWholeAndTheLargestPartSmall) {
  const FlatLayout layout({160, 160, 320, 160, 160, 320}, Dtype::kFloat32);
  const auto ranges = partition_by_layer(layout, 3);
  expect_cover(ranges, layout, 3);
  for (const Range& range : ranges) {
    for (const Piece& piece : layout.pieces(range)) {
      EXPECT_EQ(piece.numel, layout.numel(piece.parameter));
    }
    EXPECT_LE(range.size(), 640);  // 640 is the best that contiguous groups can do... or less
  }
  // Against every way to cut, for small cases.
  std::mt19937 random(3);
  for (int i = 0; i < 30; ++i) {
    std::vector<std::int64_t> numels(5);
    for (auto& numel : numels) {
      numel = static_cast<std::int64_t>(16 * (1 + random() % 9));
    }
    const FlatLayout small(numels, Dtype::kFloat32);
    std::int64_t best = small.total_numel();
    for (std::size_t first = 0; first <= 5; ++first) {
      for (std::size_t second = first; second <= 5; ++second) {
        const auto at = [&](std::size_t k) {
          return k < 5 ? small.offset(k) : small.total_numel();
        };
        best = std::min(
            best, std::max({at(first), at(second) - at(first), small.total_numel() - at(second)}));
      }
    }
    std::int64_t largest = 0;
    for (const Range& range : partition_by_layer(small, 3)) {
      largest = std::max(largest, range.size());
    }
    EXPECT_EQ(largest, best);
  }
}

TEST(Partition, ByDimensionCutsBetweenRows) {
  const FlatLayout layout({64 * 48}, Dtype::kFloat32);  // 64 rows of 48, whole cache lines
  const auto ranges = partition_by_dimension(layout, {48}, 3);
  expect_cover(ranges, layout, 3);
  for (const Range& range : ranges) {
    EXPECT_EQ(range.begin % 48, 0);
  }
}

// Rows that do not divide a parameter: its last one is shorter, and no cut is in it, or in the
// parameter behind it.
TEST(Partition, MovesEveryCutToABorderOfRows) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    const FlatLayout layout = random_layout(seed);
    const std::int64_t row = 2 * kLine;
    for (int world = 1; world <= 9; ++world) {
      const auto even = partition_by_element(layout, world);
      const auto moved =
          moved_to_rows(layout, even, std::vector<std::int64_t>(layout.count(), row));
      expect_cover(moved, layout, world);
      for (const Range& range : moved) {
        for (const Piece& piece : layout.pieces(range)) {
          EXPECT_EQ(piece.begin % row, 0);
          EXPECT_TRUE(piece.numel % row == 0 ||
                      piece.begin + piece.numel == layout.numel(piece.parameter));
        }
      }
    }
  }
}

// A 3x3 matrix over 2 ranks loses no row.
TEST(Partition, TinyParametersSurviveLargeWorlds) {
  const FlatLayout layout({9, 1}, Dtype::kFloat32);
  std::int64_t elements = 0;
  for (const Range& range : partition_by_element(layout, 8)) {
    for (const Piece& piece : layout.pieces(range)) {
      elements += piece.numel;
    }
  }
  EXPECT_EQ(elements, 10);
}

TEST(MemoryFormula, IsThePapers) {
  const ElementBytes mixed{2, 2, 12};
  EXPECT_DOUBLE_EQ(memory_share(0, 64, 1000, mixed).total(), 16'000);
  EXPECT_DOUBLE_EQ(memory_share(1, 64, 1000, mixed).total(), 4'000 + 12'000 / 64.0);
  EXPECT_DOUBLE_EQ(memory_share(2, 64, 1000, mixed).total(), 2'000 + 14'000 / 64.0);
  EXPECT_DOUBLE_EQ(memory_share(3, 64, 1000, mixed).total(), 16'000 / 64.0);
  EXPECT_THROW(memory_share(4, 2, 1000, mixed), ConfigError);
}

}  // namespace
}  // namespace trireme
