#include "trireme/core/counted.h"

#include <cstdint>

#include <gtest/gtest.h>

namespace trireme::detail {
namespace {

TEST(Counted, OneIsSingularAndEverythingElseIsNot) {
  EXPECT_EQ(counted(1, "rank"), "1 rank");
  EXPECT_EQ(counted(std::size_t{1}, "rank"), "1 rank");
  EXPECT_EQ(counted(0, "rank"), "0 ranks");
  EXPECT_EQ(counted(std::int64_t{123456}, "rank"), "123456 ranks");
  EXPECT_EQ(counted(1, "class", "classes"), "1 class");
  EXPECT_EQ(counted(2, "class", "classes"), "2 classes");
}

TEST(Enumerated, WordsHaveCommasAndAWordBeforeTheLast) {
  EXPECT_EQ(enumerated({}), "");
  EXPECT_EQ(enumerated({"a"}, " or "), "a");
  EXPECT_EQ(enumerated({"a", "b"}, " or "), "a or b");
  EXPECT_EQ(enumerated({"a", "b", "c"}), "a, b and c");
}

}  // namespace
}  // namespace trireme::detail
