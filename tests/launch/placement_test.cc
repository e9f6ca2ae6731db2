#include "launch/placement.h"

#include <set>

#include <gtest/gtest.h>

namespace trireme {
namespace {

using detail::place_ranks;

TEST(Placement, DealsEveryProcessorToOneRank) {
  const std::vector<int> cpus = {0, 1, 2, 3, 8, 9, 10};
  const auto places = place_ranks(3, cpus, 0);
  std::set<int> seen;
  for (const auto& place : places) {
    EXPECT_EQ(place.threads, static_cast<int>(place.cpus.size()));
    EXPECT_GE(place.threads, 2);
    for (const int cpu : place.cpus) {
      EXPECT_TRUE(seen.insert(cpu).second) << cpu;
    }
  }
  EXPECT_EQ(seen.size(), cpus.size());
}

TEST(Placement, SharesProcessorsThatAreTooFew) {
  const auto places = place_ranks(5, {0, 1}, 0);
  EXPECT_EQ(places.size(), 5U);
  for (const auto& place : places) {
    EXPECT_TRUE(place.cpus.empty());
    EXPECT_EQ(place.threads, 1);
  }
}

TEST(Placement, KeepsToAQuota) {
  const auto places = place_ranks(2, {0, 1, 2, 3, 4, 5, 6, 7}, 4);
  EXPECT_TRUE(places[0].cpus.empty());
  EXPECT_EQ(places[0].threads, 2);
}

}  // namespace
}  // namespace trireme
