// Random faults in elastic trainings: ranks are killed and stopped, their number changes. Whatever
// happens, the weights at the end are those of a run in which nothing did.

#include <csignal>

#include <unistd.h>

#include "tools/train_runs.h"

namespace trireme::elastic_faults_test {
namespace {

using testing::Finished;
using testing::processes_with;
using testing::Program;
using testing::read_file;
using testing::run_program;
using testing::trireme_binary;

class ElasticFaults : public testing::TrainRuns {
 protected:
  // One training with so many faults, each after a random number of milliseconds.
  void disturb(const std::string& run,
               const std::string& settings,
               int faults,
               std::uint64_t seed) {
    RandomStream random(seed);
    const std::string mark = testing::unique_mark();
    Program program(command(run, settings + " --elastic 1:4 --restart 1000 --heartbeat 0.2"),
                    {mark});
    ASSERT_TRUE(program.wait_for_output("step 1/")) << settings;
    std::string done;
    for (int fault = 0; fault < faults; ++fault) {
      usleep(static_cast<useconds_t>(1000 * random.below(400)));
      std::vector<pid_t> ranks;
      // All may just have been killed; where there are none any more, the training has ended.
      ASSERT_TRUE(testing::comes_true([&] {
        ranks = program.children();
        return !ranks.empty();
      })) << settings
          << done;
      const pid_t rank = ranks[random.below(ranks.size())];
      switch (random.below(5)) {
        case 0:
          kill(rank, SIGSTOP);
          done += " stop";
          break;
        case 1: {
          const std::string wanted = std::to_string(1 + random.below(4));
          run_program({trireme_binary(), "scale", std::to_string(program.pid()), wanted});
          done += " scale" + wanted;
          break;
        }
        case 2:
          for (const pid_t each : ranks) {
            kill(each, SIGKILL);
          }
          done += " all";
          break;
        default:
          kill(rank, SIGKILL);
          done += " kill";
      }
    }
    const Finished finished = program.wait(std::chrono::seconds(120));
    EXPECT_EQ(finished.code, 0) << settings << done << "\n" << finished.out << finished.err;
    EXPECT_TRUE(testing::comes_true([&] { return processes_with(mark).empty(); }));
    EXPECT_TRUE(read_file(path(run) + "/model.safetensors") ==
                read_file(path("calm") + "/model.safetensors"))
        << settings << done;
    EXPECT_EQ(testing::history(path(run)), testing::history(path("calm"))) << settings << done;
  }
};

TEST_F(ElasticFaults, ChangeNoBit) {
  const std::string settings = gpt() + "--steps 1500 --threads 1 --log-every 100 --eval-every 400 ";
  train_well("calm", settings);
  int number = 0;
  for (const std::string stage : {"--zero 0", "--zero 1", "--zero 2", "--zero 3"}) {
    const std::string run = "run-" + std::to_string(++number);
    disturb(
        run, settings + stage + " -n 3 --save-every 200", 13, static_cast<std::uint64_t>(number));
  }
}

}  // namespace
}  // namespace trireme::elastic_faults_test
