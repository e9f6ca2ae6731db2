// The chain of equal bits on worlds that are larger than a step has micro-batches for, than a unit
// has elements for, and than this machine has processors for.

#include <gtest/gtest.h>

#include "parity/case.h"
#include "parity/compare.h"

namespace trireme::many_ranks_test {
namespace {

using testing::Board;
using testing::Case;

// Large worlds take their time for every collective: buckets are few here.
std::vector<Case> cases_for_many() {
  const std::vector<Case> all = testing::float32_cases();
  std::vector<Case> few;
  for (const char* name : {"adamw, odd, everything in one",
                           "lamb, odd, by layer",
                           "adamw, tied",
                           "adamw, tiny",
                           "adamw, odd, by shares"}) {
    for (const Case& item : all) {
      if (item.name == name) {
        few.push_back(item);
        few.back().options.bucket_bytes = 4096;
      }
    }
  }
  EXPECT_EQ(few.size(), 5U);
  return few;
}

class ManyRanksTest : public ::testing::TestWithParam<int> {};

TEST_P(ManyRanksTest, GiveTheBitsOfOnePlainProcess) {
  const std::vector<Case> cases = cases_for_many();
  static const Board board(cases.size());
  static const bool ready = testing::train_all(cases, board, testing::train_plainly);
  ASSERT_TRUE(ready);
  testing::compare_everywhere(cases, board, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Worlds,
                         ManyRanksTest,
                         ::testing::Values(7, 12, 64),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace trireme::many_ranks_test
