// `trireme train` under launchers of others, and under a shell that stops reading.

#include <filesystem>

#include <signal.h>
#include <unistd.h>

#include "tools/train_runs.h"
#include "trireme/core/environment.h"

namespace trireme::train_launchers_test {
namespace {

namespace fs = std::filesystem;
using testing::expect_parts;
using testing::Finished;
using testing::history;
using testing::read_file;
using testing::run_program;
using testing::Words;

class TrainLaunchers : public testing::TrainRuns {
 protected:
  Finished under(Words launcher, const std::string& run, const std::string& settings) const {
    const Words rest = command(run, settings);
    launcher.insert(launcher.end(), rest.begin(), rest.end());
    return run_program(launcher);
  }

  static Words mpirun(int ranks) {
    Words command = {"mpirun", "--oversubscribe", "-n", std::to_string(ranks)};
    if (geteuid() == 0) {
      command.emplace_back("--allow-run-as-root");
    }
    return command;
  }

  // The settings of a small mlp without -n, which the launcher decides.
  std::string settings() const {
    std::string all = mlp() + "--steps 6 ";
    all.erase(all.find("-n 1"), 4);
    return all;
  }

  void expect_the_job_of_one_launcher(const Words& launcher) {
    const std::string settings = this->settings();
    const Words alone = train_well("alone", settings + "-n 1");
    const Finished finished = under(launcher, "theirs", settings + "--zero 2");
    ASSERT_EQ(finished.code, 0) << finished.out << finished.err;
    expect_parts(finished.out, {"2 ranks, ZeRO-2"});
    EXPECT_EQ(history(path("theirs")), alone);
    EXPECT_EQ(read_file(path("theirs") + "/model.safetensors"),
              read_file(path("alone") + "/model.safetensors"));
  }
};

TEST_F(TrainLaunchers, MpirunsRanksAreOneJob) {
  expect_the_job_of_one_launcher(mpirun(2));
}

// What a flag says of how ranks communicate holds under mpirun, too.
TEST_F(TrainLaunchers, MpirunsRanksAreToldHowToCommunicate) {
  const Finished grouped = under(mpirun(2), "grouped", settings() + "--sum-group 7");
  EXPECT_NE(grouped.code, 0);
  expect_parts(grouped.out + grouped.err, {"groups of 7", "sum_group"});
  const Finished secret = under(mpirun(2), "secret", settings() + "--token-file nowhere");
  EXPECT_EQ(secret.code, 2) << secret.out << secret.err;
  expect_parts(secret.err, {"--token-file", "TRIREME_TOKEN"});
}

// Whose output may go to a file, though it gives its ranks a terminal.
TEST_F(TrainLaunchers, MpirunsOutputIsPlainLines) {
  Words launcher = mpirun(2);
  launcher.insert(launcher.begin(), {"env", "TERM=xterm"});
  const Finished finished = under(launcher, "run", settings() + "--log-every 2");
  ASSERT_EQ(finished.code, 0) << finished.err;
  EXPECT_EQ(finished.out.find('\x1b'), std::string::npos) << finished.out;
  expect_parts(finished.out, {"step 2/6", "step 4/6", "step 6/6"});
}

// Of two launchers of our own the first has the say.
TEST_F(TrainLaunchers, AMachineWhoseCommandDiffersIsToldSo) {
  const auto machine = [&](int number) {
    return settings() + "-n 1 --nnodes 2 --node-rank " + std::to_string(number) +
           " --rendezvous 127.0.0.1:" + std::to_string(20000 + getpid() % 12000);
  };
  const Words secret = {"TRIREME_TOKEN=a secret of the tests"};
  testing::Program first(command("run", machine(0)), secret);
  const Finished second = run_program(command("run", machine(1) + " --lr 0.5"), secret);
  const Finished done = first.wait();
  EXPECT_EQ(second.code, 0) << second.err;
  EXPECT_EQ(done.code, 0) << done.err;
  expect_parts(second.err, {"settings other than the job's", "--lr is 0.001, not 0.5"});
  EXPECT_EQ(second.err.find("--batch"), std::string::npos) << second.err;
  EXPECT_EQ(done.err.find("other than"), std::string::npos) << done.err;
}

TEST_F(TrainLaunchers, TorchrunsRanksAreOneJob) {
  const auto python = env_string("TRIREME_TORCH_PYTHON");
  ASSERT_TRUE(python && !python->empty()) << "TRIREME_TORCH_PYTHON names no Python with torch";
  expect_the_job_of_one_launcher({*python,
                                  "-m",
                                  "torch.distributed.run",
                                  "--standalone",
                                  "--nproc-per-node",
                                  "2",
                                  "--no-python",
                                  "--"});  // without it torchrun takes --run for its own --run-path
}

TEST_F(TrainLaunchers, RefuseAnotherNumberOfRanks) {
  const Finished finished = under(mpirun(2), "run", settings() + "-n 3");
  EXPECT_NE(finished.code, 0);
  expect_parts(finished.err, {"-n: expected 2", "mpirun", "found 3"});
  EXPECT_FALSE(fs::exists(path("run")));
}

// Nobody takes back its folder, which mpirun knows nothing of.
TEST_F(TrainLaunchers, ARefusalUnderMpirunLeavesAnEmptyFolder) {
  const Finished finished =
      under(mpirun(2), "run", "--model gpt --data licenses --layers 1 --steps 1 --batch 100000000");
  EXPECT_NE(finished.code, 0);
  expect_parts(finished.err, {"batch (--batch): expected no more than"});
  EXPECT_TRUE(fs::is_empty(path("run")));
}

TEST_F(TrainLaunchers, TrainOnWhenNobodyReadsTheOutput) {
  Words shell = command("run", mlp() + "-n 2 --steps 40 --log-every 1 --eval-every 1000");
  shell.insert(shell.begin(), {"bash", "-c", "set -o pipefail; \"$0\" \"$@\" | head -n 1"});
  const Finished finished = run_program(shell);
  EXPECT_EQ(finished.code, 0) << finished.err;
  expect_parts(finished.err, {"standard output", "the training continues", "train.log"});
  EXPECT_EQ(summary("run").at("status"), "finished");
  EXPECT_EQ(history(path("run")).size(), 41U) << "40 steps and the last evaluation";
}

TEST_F(TrainLaunchers, SayHowAnInterruptedRunResumes) {
  signal(SIGINT, SIG_DFL);  // a shell may have had it ignored
  const auto interrupted = [&](const std::string& run, const std::string& more) {
    testing::Program program(command(run, mlp() + "--steps 1000000 " + more));
    EXPECT_TRUE(program.wait_for_output("step 10/"));
    kill(program.pid(), SIGINT);
    const Finished finished = program.wait();
    EXPECT_EQ(finished.code, 128 + SIGINT);
    return finished.err;
  };
  expect_parts(interrupted("saved", "--save-every 1000"),
               {"trireme train --resume " + path("saved")});
  expect_parts(interrupted("unsaved", ""), {"--save-every", "--weights-from " + path("unsaved")});
  // What is advised works.
  const Finished resumed = run_program(
      {testing::trireme_binary(), "train", "--resume", path("saved"), "--print-config"});
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  const Finished anew = run_program({testing::trireme_binary(),
                                     "train",
                                     "--weights-from",
                                     path("unsaved"),
                                     "--config",
                                     path("unsaved") + "/config.json",
                                     "--run",
                                     path("anew"),
                                     "--steps",
                                     "2"});
  EXPECT_EQ(anew.code, 0) << anew.err;
  // The folder is no dead end for the same command either.
  const Finished again = train("unsaved", mlp() + "--steps 1000000");
  EXPECT_EQ(again.code, 2);
  expect_parts(again.err, {"already holds a run", "--weights-from " + path("unsaved")});
}

}  // namespace
}  // namespace trireme::train_launchers_test
