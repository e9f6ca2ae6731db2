// A training that is killed while it saves, at any moment: the newest checkpoint is whole and is
// the right one, and going on from it leads to where a run that was never killed comes to.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <random>
#include <thread>

#include <gtest/gtest.h>
#include <signal.h>

#include "support/processes.h"
#include "support/saving_worker.h"
#include "trireme/checkpoint/checkpoint_folder.h"
#include "trireme/checkpoint/checkpoint_reader.h"
#include "trireme/checkpoint/verify.h"
#include "trireme/launch/launcher.h"

namespace trireme {
namespace {

using testing::Finished;
using testing::Program;
using testing::TemporaryFolder;

constexpr std::int64_t kNumel = 2'000'003;  // 16 MB
constexpr int kKills = 100;
constexpr std::int64_t kNever = 1'000'000;

std::vector<std::string> job(const std::string& folder, std::int64_t steps, std::int64_t every) {
  return {testing::trireme_binary(),
          "run",
          "-n",
          "2",
          "--",
          testing::test_binary("saving_worker"),
          folder,
          std::to_string(steps),
          std::to_string(every),
          std::to_string(kNumel)};
}

// The launcher and its ranks, in any order, a moment apart or not at all.
void kill_all(const Program& program, std::mt19937& random) {
  std::vector<pid_t> pids = program.children();
  pids.push_back(program.pid());
  std::shuffle(pids.begin(), pids.end(), random);
  const int pause_us = random() % 3 == 0 ? static_cast<int>(random() % 2000) : 0;
  for (const pid_t pid : pids) {
    kill(pid, SIGKILL);
    if (pause_us > 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(pause_us));
    }
  }
}

// The state of a checkpoint, which is that of its step.
std::vector<std::uint64_t> state_of(const std::string& checkpoint, std::int64_t step) {
  std::vector<std::uint64_t> values(static_cast<std::size_t>(kNumel));
  const CheckpointReader reader(checkpoint);
  EXPECT_EQ(reader.manifest().step, step);
  EXPECT_EQ(reader.manifest().notes.at("step"), std::to_string(step));
  reader.read(reader.manifest().tensors.at(0), reinterpret_cast<std::byte*>(values.data()));
  return values;
}

bool is_right(const std::vector<std::uint64_t>& values, std::int64_t step) {
  const testing::Steps steps(step);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] != testing::value_after(steps, static_cast<std::int64_t>(i))) {
      return false;
    }
  }
  return true;
}

TEST(KilledSaving, AHundredKillsLoseNothingThatWasComplete) {
  const TemporaryFolder folder;
  const std::string place = folder.path() + "/checkpoints";
  const CheckpointFolder checkpoints(place);
  const std::string mark = testing::unique_mark();
  std::mt19937 random(20270814);
  std::int64_t newest = 0;
  int unfinished = 0;
  int progressed = 0;
  for (int i = 0; i < kKills; ++i) {
    Program program(job(place, kNever, 1 + i % 2), {mark});
    if (i % 10 != 0) {  // else: anywhere in its start
      ASSERT_TRUE(program.wait_for_output("goes on from")) << i;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 80'000));
    kill_all(program, random);
    const Finished result = program.wait();
    // The launcher may have seen a rank die before it died itself.
    EXPECT_TRUE(result.code == 128 + SIGKILL || result.code == kExitRankFailed) << result.err;
    EXPECT_EQ(result.err.find("checkpoint"), std::string::npos) << result.err;
    while (!testing::processes_with(mark).empty()) {  // ranks die with the launcher, not before
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    unfinished += checkpoints.unfinished().empty() ? 0 : 1;
    const auto found = checkpoints.newest();
    if (!found) {
      EXPECT_EQ(newest, 0) << "checkpoints are lost";
      continue;
    }
    EXPECT_GE(*found, newest) << "a newer checkpoint is lost";
    progressed += *found > newest ? 1 : 0;
    newest = *found;
    for (const std::int64_t step : checkpoints.steps()) {  // not only the newest
      ASSERT_EQ(verify_checkpoint(checkpoints.path_of(step)), std::vector<std::string>());
    }
    ASSERT_TRUE(is_right(state_of(checkpoints.path_of(newest), newest), newest)) << newest;
  }
  // The kills hit what they are meant to hit, on a busy machine, too.
  EXPECT_GE(unfinished, kKills / 10);
  EXPECT_GE(progressed, kKills / 20);

  const std::int64_t last = newest + 3;
  const Finished result = testing::run_program(job(place, last, 1));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(checkpoints.newest(), last);
  EXPECT_EQ(checkpoints.steps().size(), 2U);
  EXPECT_TRUE(checkpoints.unfinished().empty());

  const std::string other = folder.path() + "/never killed";
  EXPECT_EQ(testing::run_program(job(other, last, kNever)).code, 0);
  const auto expected = state_of(CheckpointFolder(other).path_of(last), last);
  EXPECT_TRUE(state_of(checkpoints.path_of(last), last) == expected);
  EXPECT_TRUE(is_right(expected, last));
  std::printf("%d of %d kills left something unfinished; step %lld was reached\n",
              unfinished,
              kKills,
              static_cast<long long>(last));
}

}  // namespace
}  // namespace trireme
