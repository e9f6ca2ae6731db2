// One plain process = DDP = ZeRO-1 = ZeRO-2 = ZeRO-3 mapped = ZeRO-3 copied, on 1 to 5 ranks, bit
// for bit, after steps of 12 micro-batches: 8, or 20 in half precision and where there is time.

#include <gtest/gtest.h>

#include "parity/case.h"
#include "parity/compare.h"

namespace trireme::parity_test {
namespace {

using testing::Board;
using testing::Case;

class ParityTest : public ::testing::TestWithParam<int> {};

TEST_P(ParityTest, EveryModeGivesTheBitsOfOnePlainProcess) {
  const std::vector<Case> cases = testing::float32_cases();
  static const Board board(cases.size());
  static const bool ready = testing::train_all(cases, board, testing::train_plainly);
  ASSERT_TRUE(ready);
  testing::compare_everywhere(cases, board, GetParam());
}

TEST_P(ParityTest, HalfPrecisionIsTheSameInEveryMode) {
  const std::vector<Case> cases = testing::half_cases();
  static const Board board(cases.size());
  static const bool ready = testing::train_all(cases, board, [](const Case& item) {
    EngineOptions options = item.options;
    options.offload = {};                                      // states beside the parameters
    return testing::train_with_engine(item, options, init());  // formula_test has its oracle
  });
  ASSERT_TRUE(ready);
  testing::compare_everywhere(cases, board, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Worlds, ParityTest, ::testing::Values(1, 2, 3, 4, 5));

}  // namespace
}  // namespace trireme::parity_test
