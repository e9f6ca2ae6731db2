#include "trireme/shard/bucket_plan.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

// Every parameter's elements are in exactly one bucket, no bucket is larger than asked for (one
// line of 64 bytes is the least), and they come in the order of a backward pass.
TEST(BucketPlan, CoversEverythingOnceFromTheEnd) {
  const std::vector<FlatLayout> units = {
      FlatLayout({7 * 15, 15, 1, 0, 13}, Dtype::kFloat32),
      FlatLayout({}, Dtype::kFloat32),
      FlatLayout({100'003}, Dtype::kBFloat16),
      FlatLayout(std::vector<std::int64_t>(3000, 3), Dtype::kFloat64),
  };
  for (const std::size_t bytes : {1UL, 64UL, 100UL, 4096UL, 1UL << 20, 1UL << 40}) {
    const auto buckets = plan_buckets(units, bytes);
    std::vector<std::vector<int>> seen;
    for (const FlatLayout& unit : units) {
      seen.emplace_back(static_cast<std::size_t>(unit.total_numel()), 0);
    }
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      const Bucket& bucket = buckets[b];
      const std::size_t element = dtype_bytes(units[bucket.unit].dtype());
      EXPECT_LE(static_cast<std::size_t>(bucket.range.size()) * element,
                std::max(bytes, FlatLayout::kAlignmentBytes));
      EXPECT_LE(bucket.pieces.size(), 1000U);
      EXPECT_EQ(bucket.pieces, units[bucket.unit].pieces(bucket.range));
      if (b > 0) {
        const Bucket& before = buckets[b - 1];
        EXPECT_TRUE(bucket.unit < before.unit ||
                    (bucket.unit == before.unit && bucket.range.end == before.range.begin));
      }
      for (const Piece& piece : bucket.pieces) {
        for (std::int64_t i = 0; i < piece.numel; ++i) {
          ++seen[bucket.unit][static_cast<std::size_t>(piece.offset + i)];
        }
      }
    }
    for (std::size_t u = 0; u < units.size(); ++u) {
      for (const Piece& piece : units[u].pieces({0, units[u].total_numel()})) {
        for (std::int64_t i = 0; i < piece.numel; ++i) {
          ASSERT_EQ(seen[u][static_cast<std::size_t>(piece.offset + i)], 1);
        }
      }
    }
  }
}

// Where blocks are not to be cut, buckets begin with one, and have one where they are smaller.
TEST(BucketPlan, CutsParametersBetweenBlocks) {
  const std::vector<FlatLayout> units = {FlatLayout({50, 10'001, 7, 4000}, Dtype::kFloat32)};
  for (const std::int64_t block : {32, 256, 1024, 100'000}) {
    for (const std::size_t bytes : {64UL, 1000UL, 5000UL, 1UL << 20}) {
      std::int64_t end = units[0].total_numel();
      for (const Bucket& bucket : plan_buckets(units, bytes, block)) {
        EXPECT_EQ(bucket.range.end, end);
        end = bucket.range.begin;
        EXPECT_LT(bucket.range.begin, bucket.range.end);
        for (const Piece& piece : bucket.pieces) {
          EXPECT_EQ(piece.begin % block, 0) << block << ", " << bytes;
        }
        const std::size_t least = static_cast<std::size_t>(block) * 4;
        EXPECT_LE(static_cast<std::size_t>(bucket.range.size()) * 4, std::max(bytes, least) + 64);
      }
      EXPECT_EQ(end, 0);
    }
  }
}

}  // namespace
}  // namespace trireme
