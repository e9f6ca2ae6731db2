// A rank that is killed in the middle of a step on several machines: the others say which it was,
// soon, and end.

#include <chrono>
#include <thread>

#include <gtest/gtest.h>
#include <signal.h>

#include "cluster/machine_job.h"
#include "trireme/core/error.h"

namespace trireme {
namespace {

using detail::concat;
using testing::expect_parts;
using testing::Finished;
using testing::MachineJob;
using testing::Machines;

using Clock = std::chrono::steady_clock;

struct Loss {
  int stage;
  int ranks_per_machine;
};

class LostInAStepTest : public ::testing::TestWithParam<Loss> {
 protected:
  void SetUp() override {
    if (const auto reason = Machines::unavailable()) {
      GTEST_SKIP() << *reason;
    }
  }
};

TEST_P(LostInAStepTest, IsNamedByEverySurvivor) {
  const auto [stage, per] = GetParam();
  const int ranks = 2 * per;
  for (const int milliseconds : {3, 20}) {  // into one step or another
    MachineJob job({per, per});
    job.program_name = "training_worker";
    job.options = {"--timeout", "300"};  // which nobody must wait for
    job.start_all(std::to_string(stage));
    ASSERT_TRUE(job.wait_until_looping());
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    const int lost = ranks - 1;
    const pid_t victim = job.program(1).children().back();
    int spoke = 0;
    const auto start = Clock::now();
    kill(victim, SIGKILL);
    for (const int machine : {0, 1}) {
      const Finished result = job.wait(machine);
      EXPECT_LT(Clock::now() - start, std::chrono::seconds(120));
      EXPECT_EQ(result.code, 3) << result.err;
      expect_parts(result.err,
                   {concat("trireme: ", job.title(1), ": rank ", lost, " of ", ranks), "signal 9"});
      for (int rank = machine * per; rank < (machine + 1) * per; ++rank) {
        // In its own words, not only the launcher's, who ends a rank that takes too long for them.
        const std::string words = testing::lines_of(result.err, concat("[", rank, "] "));
        if (rank != lost && !words.empty()) {
          ++spoke;
          expect_parts(words, {concat("rank ", lost, " (pid ", victim, " ", job.on(1))});
        }
      }
    }
    EXPECT_GT(spoke, 0);
    job.expect_nothing_left();
  }
}

INSTANTIATE_TEST_SUITE_P(Stages,
                         LostInAStepTest,
                         ::testing::Values(Loss{1, 1}, Loss{1, 2}, Loss{3, 1}, Loss{3, 2}),
                         [](const auto& given) {
                           return concat(
                               "Stage", given.param.stage, "On2x", given.param.ranks_per_machine);
                         });

}  // namespace
}  // namespace trireme
