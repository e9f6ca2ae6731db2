// `trireme train`, killed at any moment and started again by the same command, as a scheduler does
// it: the run ends like one that nobody has killed.

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <random>
#include <set>
#include <thread>

#include "tools/train_runs.h"
#include "trireme/checkpoint/checkpoint_folder.h"
#include "trireme/checkpoint/verify.h"
#include "trireme/launch/launcher.h"

namespace trireme::killed_training_test {
namespace {

using testing::history;
using testing::Program;
using testing::read_file;

constexpr int kKills = 8;

class KilledTraining : public testing::TrainRuns {};

TEST_F(KilledTraining, EndsLikeOneThatWasNeverKilled) {
  // Checkpoints of 13 MB, nearly all the time.
  const std::string settings =
      "--model mlp --hidden 1024,1024 " + images(60, 37) +
      "--dropout 0.1 --steps 400 --eval-every 9 --log-every 1 --optimizer adamw ";
  train_well("calm", settings + "-n 2");

  const CheckpointFolder checkpoints(path("killed") + "/checkpoints");
  std::mt19937 random(20270815);
  std::int64_t newest = 0;
  int unfinished = 0;
  std::set<std::int64_t> verified;
  for (int i = 0; i < kKills; ++i) {
    const std::string mark = testing::unique_mark();
    const std::string ranks = std::to_string(1 + i % 3);
    const std::string zero = std::to_string(i % 4);
    Program program(command("killed", settings + "--save-every 1 -n " + ranks + " --zero " + zero),
                    {mark});
    ASSERT_TRUE(program.wait_for_output("step ")) << i;
    for (int tries = 0; tries < 2000 && !checkpoints.newest();
         ++tries) {  // there is one to go on from
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 300'000));
    std::vector<pid_t> pids = program.children();
    pids.push_back(program.pid());
    std::shuffle(pids.begin(), pids.end(), random);
    for (const pid_t pid : pids) {
      kill(pid, SIGKILL);
    }
    const testing::Finished result = program.wait();
    // The launcher may have seen a rank die before it died itself.
    ASSERT_TRUE(result.code == 128 + SIGKILL || result.code == kExitRankFailed)
        << result.out << result.err;
    while (!testing::processes_with(mark).empty()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    unfinished += checkpoints.unfinished().empty() ? 0 : 1;
    const std::int64_t found = checkpoints.newest().value_or(0);
    EXPECT_GE(found, newest) << "a newer checkpoint is lost";
    newest = found;
    for (const std::int64_t step : checkpoints.steps()) {
      if (!verified.insert(step).second) {
        continue;
      }
      EXPECT_EQ(verify_checkpoint(checkpoints.path_of(step)), std::vector<std::string>());
    }
  }
  EXPECT_GT(newest, 0);
  EXPECT_GE(unfinished, 1);
  std::printf("%d of %d kills left something unfinished, the last after step %lld\n",
              unfinished,
              kKills,
              static_cast<long long>(newest));

  const testing::Finished last = train("killed", settings + "-n 2 --save-every 50");
  ASSERT_EQ(last.code, 0) << last.out << last.err;
  EXPECT_EQ(history(path("killed")), history(path("calm")));
  for (const char* name : {"model.safetensors", "best.safetensors", "evaluation.csv"}) {
    const std::string file = read_file(path("calm") + "/" + name);
    EXPECT_FALSE(file.empty()) << name;
    EXPECT_TRUE(file == read_file(path("killed") + "/" + name)) << name;
  }
}

}  // namespace
}  // namespace trireme::killed_training_test
