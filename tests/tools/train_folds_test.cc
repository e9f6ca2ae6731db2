// Cross-validations that were ended, and started again.

#include <algorithm>
#include <csignal>
#include <filesystem>

#include <unistd.h>

#include "tools/train_runs.h"

namespace trireme::train_folds_test {
namespace {

namespace fs = std::filesystem;
using testing::expect_parts;
using testing::Finished;
using testing::history;
using testing::Json;
using testing::processes_with;
using testing::Program;
using testing::read_file;
using testing::run_program;
using testing::trireme_binary;
using testing::Words;

class TrainFolds : public testing::TrainRuns {
 protected:
  // SIGKILL to everything, when the run has said this.
  void kill_after(const Words& words, const std::string& text) {
    const std::string mark = testing::unique_mark();
    Program program(words, {mark});
    ASSERT_TRUE(program.wait_for_output(text));
    for (const pid_t each : processes_with(mark)) {
      kill(each, SIGKILL);
    }
    program.wait();
    for (int i = 0; i < 1000 && !processes_with(mark).empty(); ++i) {
      usleep(5000);
    }
    ASSERT_TRUE(processes_with(mark).empty());
  }
  Finished resume(const std::string& run, const Words& more = {}) const {
    Words words = {trireme_binary(), "train", "--resume", path(run)};
    words.insert(words.end(), more.begin(), more.end());
    return run_program(words);
  }

  void expect_same(const std::string& a, const std::string& b, int folds) const {
    for (int fold = 1; fold <= folds; ++fold) {
      const std::string name = "/fold-" + std::to_string(fold);
      EXPECT_EQ(history(path(b) + name), history(path(a) + name)) << name;
      for (const char* file : {"/model.safetensors", "/best.safetensors", "/evaluation.csv"}) {
        const std::string wanted = read_file(path(a) + name + file);
        EXPECT_FALSE(wanted.empty()) << name << file;
        EXPECT_TRUE(read_file(path(b) + name + file) == wanted) << name << file;
      }
    }
    const Json wanted = summary(a);
    const Json found = summary(b);
    for (const char* name :
         {"status", "steps", "training_loss", "metrics", "folds", "micro_batch"}) {
      EXPECT_EQ(found.at(name), wanted.at(name)) << name;
    }
  }
};

TEST_F(TrainFolds, EndAsIfNobodyHadKilledThem) {
  const std::string settings = mlp() +
                               "--steps 200 --eval-every 20 --dropout 0.2 --folds 4 --log-every 1 "
                               "--normalise standard ";
  ASSERT_EQ(train("calm", settings).code, 0);
  kill_after(command("killed", settings + "-n 2"), "fold 3 of 4");
  ASSERT_FALSE(fs::exists(path("killed") + "/summary.json"));
  ASSERT_FALSE(fs::exists(path("killed") + "/fold-3/summary.json"));
  const auto second = fs::last_write_time(path("killed") + "/fold-2/metrics.jsonl");
  // What has ended is read; the fold at hand begins anew, with other ranks. Killed again in the
  // last one.
  kill_after({trireme_binary(), "train", "--resume", path("killed"), "-n", "3", "--zero", "2"},
             "fold 4 of 4");
  EXPECT_EQ(fs::last_write_time(path("killed") + "/fold-2/metrics.jsonl"), second);
  const Finished last = train("killed", settings);  // the very same command
  ASSERT_EQ(last.code, 0) << last.err;
  expect_parts(last.out,
               {"fold 1 of 4 is already finished",
                "fold 3 of 4 is already finished",
                "cross-validation, 4 folds"});
  expect_same("calm", "killed", 4);
  // Once more, where it had ended: nothing is left to do.
  const Json before = summary("killed");
  EXPECT_EQ(train("killed", settings).code, 0);
  EXPECT_EQ(resume("killed").code, 0);
  EXPECT_EQ(summary("killed").at("folds"), before.at("folds"));
  EXPECT_EQ(summary("killed").at("memory"), before.at("memory"));
}

TEST_F(TrainFolds, GoOnFromTheCheckpointOfAFold) {
  const std::string settings =
      mlp() + "--steps 300 --eval-every 20 --dropout 0.2 --folds 2 --log-every 1 ";
  ASSERT_EQ(train("calm", settings).code, 0);
  kill_after(command("killed", settings + "--save-every 10 -n 2"), "step 60/");
  ASSERT_TRUE(fs::exists(path("killed") + "/fold-1/checkpoints/latest"));
  const Finished last = resume("killed");
  ASSERT_EQ(last.code, 0) << last.err;
  expect_parts(last.out, {"fold 1 of 2", "resuming after step "});
  expect_same("calm", "killed", 2);
}

// On how many ranks they were trained, whoever asks again.
TEST_F(TrainFolds, AskedAgainSayWhatTheyWereTrainedWith) {
  const std::string settings = mlp() + "--steps 6 --folds 2 --save-every 2 ";
  train_well("run", settings + "-n 2 --zero 1");
  const Json before = summary("run");
  EXPECT_EQ(before.at("ranks"), 2);
  for (const Words& more : {Words{"-n", "1", "--zero", "0"}, Words{}}) {
    const Finished again = resume("run", more);
    EXPECT_EQ(again.code, 0) << again.err;
    for (const char* name : {"ranks", "zero", "steps", "memory"}) {
      EXPECT_EQ(summary("run").at(name), before.at(name)) << name;
    }
    EXPECT_EQ(testing::read_json(path("run") + "/config.json").at("ranks"), 2);
  }
  // The second fold on other ranks.
  fs::remove_all(path("run") + "/fold-2");
  EXPECT_EQ(resume("run", {"-n", "3"}).code, 0);
  EXPECT_EQ(summary("run").at("ranks"), 3);
  EXPECT_EQ(summary("run").at("steps_by_ranks"),
            testing::parse_json(R"([{"from":1,"to":6,"ranks":2},{"from":7,"to":12,"ranks":3}])"));
}

TEST_F(TrainFolds, RefuseWhatWouldMixTwoCrossValidations) {
  const std::string settings = mlp() + "--steps 3 --folds 3 ";
  ASSERT_EQ(train("run", settings).code, 0);
  fs::remove(path("run") + "/summary.json");
  fs::remove(path("run") + "/fold-3/summary.json");
  for (const std::string more : {"", "--allow-changes"}) {
    const Finished other = train("run", settings + "--lr 0.5 " + more);
    EXPECT_EQ(other.code, 2) << other.out;
    expect_parts(other.err, {"other settings", "lr: 0.001 in the run, 0.5 now", "--run"});
  }
  const Finished number = train("run", "--resume 2");
  EXPECT_EQ(number.code, 2);
  expect_parts(number.err, {"cross-validation", "found 2"});
  EXPECT_EQ(train("run", settings + "--resume never").code, 2);
  // A sample that is different now, whichever fold holds it out: the others are trained on it.
  const std::string labels = path("train-labels-idx1-ubyte");
  std::string bytes = read_file(labels);
  fs::remove(path("run") + "/fold-2/summary.json");
  for (const std::size_t sample : {0u, 1u, 2u, 3u, 4u, 5u}) {
    std::string changed = bytes;
    changed.at(8 + sample) = changed.at(8 + sample) == 0 ? '\1' : '\0';
    data_.write("train-labels-idx1-ubyte", changed);
    const Finished one = resume("run", {"-n", sample % 2 == 0 ? "1" : "2"});
    // 3 where the launcher hears first of a rank that missed the one that refused.
    EXPECT_TRUE(one.code == 2 || one.code == 3) << sample << one.out;
    expect_parts(one.err, {"data (--data): fold 1", "other samples", data_.path(), "--run"});
  }
  // Other data of the same size. Where a fold is from before all samples were looked at, those that
  // it was evaluated on tell.
  Json older = testing::parse_json(read_file(path("run") + "/fold-1/summary.json"));
  ASSERT_EQ(older.erase("data_fingerprint"), 1u) << older;
  data_.write("run/fold-1/summary.json", older.dump());
  std::rotate(bytes.begin() + 8, bytes.begin() + 9, bytes.end());
  data_.write("train-labels-idx1-ubyte", bytes);
  const Finished data = resume("run");
  EXPECT_TRUE(data.code == 2 || data.code == 3) << data.out;
  expect_parts(data.err, {"fold 1", "other samples", data_.path()});
}

// What the ranks find in the first fold: 40 samples to train on are left of 60.
TEST_F(TrainFolds, CanBeRepeatedAfterOneThatWasRefused) {
  const std::string settings = mlp() + "--steps 3 --folds 3 --save-every 2 ";
  const Finished refused = train("run", settings + "--batch 42");
  EXPECT_EQ(refused.code, 2) << refused.out;
  expect_parts(refused.err, {"40 samples", "found 42"});
  const Finished again = train("run", settings + "--batch 42");
  EXPECT_EQ(again.code, 2) << again.out;
  EXPECT_EQ(again.err, refused.err);
  const Finished corrected = train("run", settings + "--batch 36");
  ASSERT_EQ(corrected.code, 0) << corrected.err;
  ASSERT_EQ(train("fresh", settings + "--batch 36").code, 0);
  expect_same("fresh", "run", 3);
  // Also where the next one is none.
  EXPECT_EQ(train("single", settings + "--batch 42").code, 2);
  const Finished single = train("single", mlp() + "--steps 3");
  EXPECT_EQ(single.code, 0) << single.err;
  EXPECT_FALSE(fs::exists(path("single") + "/fold-1"));
}

TEST_F(TrainFolds, SayHowTheyAreResumed) {
  signal(SIGINT, SIG_DFL);  // a shell may have had it ignored
  Program program(command("run", mlp() + "-n 2 --steps 1000000 --folds 3 --log-every 1"));
  ASSERT_TRUE(program.wait_for_output("step 3/"));
  kill(program.pid(), SIGINT);
  const Finished finished = program.wait();
  EXPECT_EQ(finished.code, 128 + SIGINT) << finished.err;
  expect_parts(finished.err, {"trireme train --resume " + path("run")});
}

}  // namespace
}  // namespace trireme::train_folds_test
