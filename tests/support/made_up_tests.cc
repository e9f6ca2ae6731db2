// Not a test of anything: main_test runs these one by one and looks at what becomes of them.

#include <cstdlib>

#include <gtest/gtest.h>

namespace {

TEST(MadeUp, Passes) {}

TEST(MadeUp, Fails) {
  FAIL() << "on purpose";
}

TEST(MadeUp, IsSkipped) {
  GTEST_SKIP() << "the moon\nis not full";
}

TEST(MadeUp, FailsAndIsSkipped) {
  EXPECT_EQ(1, 2);
  GTEST_SKIP() << "too late";
}

TEST(MadeUp, LeavesEarly) {
  std::exit(0);
}

TEST(MadeUp, DISABLED_IsForgotten) {}

}  // namespace
