// Two LibTorch threads in every rank, and in the plain process: the bits are the same in every
// mode. (They are not those of one thread: docs/parity.md, Conditions.)

#include <cstdio>

#include <gtest/gtest.h>

#include "parity/case.h"
#include "parity/compare.h"

namespace trireme::threads_test {
namespace {

using testing::Board;
using testing::Case;

std::vector<Case> cases_for_threads() {
  std::vector<Case> all = testing::float32_cases();
  Case broad = all[1];  // adamw
  broad.name = "adamw, broad";
  broad.model = testing::make_broad;
  broad.clip_norm = 0.5;
  broad.options = {.unit_bytes = 40'000, .bucket_bytes = 30'000};
  return {broad};
}

TEST(ThreadsTest, TwoOfEveryRankGiveTheBitsOfOnePlainProcessWithTwo) {
  const std::vector<Case> cases = cases_for_threads();
  const Board board(cases.size());
  ASSERT_TRUE(testing::train_all(cases, board, testing::train_plainly, 2));
  const Board one(cases.size());
  ASSERT_TRUE(testing::train_all(cases, one, testing::train_plainly, 1));
  std::printf("one thread and two: %s\n",
              testing::first_difference(one.get(0), board.get(0)).c_str());
  for (const int size : {1, 2}) {
    testing::compare_everywhere(cases, board, size, 2);
  }
}

}  // namespace
}  // namespace trireme::threads_test
