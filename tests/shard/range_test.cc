#include "trireme/shard/range.h"

#include <gtest/gtest.h>

#include "trireme/core/error.h"

namespace trireme {
namespace {

TEST(EvenRange, CoversEveryElementOnceInRankOrder) {
  for (int world = 1; world <= 9; ++world) {
    for (std::int64_t numel = 0; numel <= 40; ++numel) {
      std::int64_t next = 0;
      for (int rank = 0; rank < world; ++rank) {
        const Range range = even_range(numel, world, rank);
        EXPECT_EQ(range.begin, next);
        EXPECT_GE(range.size(), numel / world);
        EXPECT_LE(range.size(), numel / world + 1);
        next = range.end;
      }
      EXPECT_EQ(next, numel);
    }
  }
}

TEST(EvenRange, RefusesWhatIsNoPlaceInAWorld) {
  EXPECT_THROW(even_range(10, 4, 4), ConfigError);
  EXPECT_THROW(even_range(10, 4, -1), ConfigError);
  EXPECT_THROW(even_range(10, 0, 0), ConfigError);
  EXPECT_THROW(even_range(-1, 4, 0), ConfigError);
}

}  // namespace
}  // namespace trireme
