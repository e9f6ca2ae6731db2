#include "trireme/core/nearest_word.h"

#include <gtest/gtest.h>

namespace trireme::nearest_word_test {
namespace {

TEST(NearestWord, IsAlikeInHalfOfItsLettersAtLeast) {
  const std::vector<std::string> columns = {"a", "k", "y"};
  EXPECT_EQ(nearest_word("7", columns), "");
  EXPECT_EQ(nearest_word("-1", columns), "");
  EXPECT_EQ(nearest_word("age", {"cit", "inc"}), "");
  EXPECT_EQ(nearest_word("lf", {"beta", "lr"}), "lr");
  EXPECT_EQ(nearest_word("bach", {"width", "batch"}), "batch");
  EXPECT_EQ(nearest_word("incmoe", {"age", "income"}), "income");
}

}  // namespace
}  // namespace trireme::nearest_word_test
