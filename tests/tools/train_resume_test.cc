// trireme train, ended and started again.

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include <unistd.h>

#include "tools/train_runs.h"

namespace trireme::train_resume_test {
namespace {

namespace fs = std::filesystem;
using testing::expect_parts;
using testing::Finished;
using testing::history;
using testing::Json;
using testing::processes_with;
using testing::Program;
using testing::read_file;
using testing::read_json;
using testing::run_program;
using testing::trireme_binary;
using testing::Words;

class TrainResume : public testing::TrainRuns {
 protected:
  // Kills a run, with everything it has started, when it has said this.
  void kill_after(const std::string& run, const std::string& settings, const std::string& text) {
    const std::string mark = testing::unique_mark();
    Program program(command(run, settings), {mark});
    ASSERT_TRUE(program.wait_for_output(text));
    for (const pid_t rank : program.children()) {
      kill(rank, SIGKILL);
    }
    kill(program.pid(), SIGKILL);
    program.wait();
    for (int i = 0; i < 1000 && !processes_with(mark).empty(); ++i) {
      usleep(5000);
    }
    ASSERT_TRUE(processes_with(mark).empty());
  }

  void interrupt_after(const std::string& run,
                       const std::string& settings,
                       const std::string& text) {
    signal(SIGINT, SIG_DFL);  // a shell may have had it ignored
    Program program(command(run, settings));
    ASSERT_TRUE(program.wait_for_output(text));
    kill(program.pid(), SIGINT);
    const Finished finished = program.wait();
    EXPECT_EQ(finished.code, 128 + SIGINT) << finished.out << finished.err;
  }

  void expect_same_file(const std::string& a, const std::string& b, const std::string& name) const {
    const std::string file = read_file(path(a) + "/" + name);
    EXPECT_FALSE(file.empty()) << name;
    EXPECT_TRUE(file == read_file(path(b) + "/" + name)) << name << " of " << a << " and " << b;
  }

  void expect_same_run(const std::string& a, const std::string& b) const {
    EXPECT_EQ(history(path(b)), history(path(a)));
    for (const char* name : {"model.safetensors", "best.safetensors", "evaluation.csv"}) {
      expect_same_file(a, b, name);
    }
    const Json wanted = summary(a);
    const Json found = summary(b);
    for (const char* name : {"status", "steps", "training_loss", "metrics", "best"}) {
      EXPECT_EQ(found.at(name), wanted.at(name)) << name;
    }
  }

  void copy(const std::string& from, const std::string& to) const {
    fs::copy(path(from), path(to), fs::copy_options::recursive);
  }

  // The command that a message gives behind these words, and how it is followed.
  static std::string advised(const std::string& message, const std::string& words) {
    const std::size_t at = message.find(words);
    EXPECT_NE(at, std::string::npos) << "no \"" << words << "\" in: " << message;
    const std::size_t begin = at == std::string::npos ? message.size() : at + words.size();
    return message.substr(begin, message.find('\n', begin) - begin);
  }
  static Words followed(const std::string& advice) {
    Words command = testing::words(advice);
    EXPECT_FALSE(command.empty());
    EXPECT_EQ(command.at(0), "trireme") << advice;
    command.at(0) = trireme_binary();
    return command;
  }

  // A file of the newest checkpoint.
  std::string newest(const std::string& run, const std::string& name) const {
    std::istringstream latest(read_file(path(run) + "/checkpoints/latest"));
    std::string step;
    latest >> step;
    return path(run) + "/checkpoints/" + step + "/" + name;
  }

  std::map<std::string, std::string> contents(const std::string& run) const {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(path(run))) {
      const std::string name = entry.path().filename().string();
      if (entry.is_regular_file() && name != ".lock") {  // says who looked last
        files[entry.path().string()] = read_file(entry.path().string());
      }
    }
    return files;
  }
};

// --- the same bits

TEST_F(TrainResume, EndsAsIfNobodyHadKilledIt) {
  const std::string settings =
      gpt() + "--dropout 0.2 --steps 150 --eval-every 10 --record-samples --log-every 1 ";
  train_well("calm", settings);
  // The same command; and with other ranks and another stage each time.
  kill_after("killed", settings + "--save-every 7 -n 2", "step 20/");
  ASSERT_FALSE(fs::exists(path("killed") + "/summary.json"));
  kill_after("killed", settings + "--save-every 7 -n 2", "step 50/");
  kill_after("killed", settings + "--save-every 5 -n 3 --zero 3 --placement copied", "step 100/");
  const Finished last = train("killed", settings + "-n 2 --zero 2 --save-every 0");
  EXPECT_EQ(last.code, 0) << last.err;
  expect_parts(last.out, {"resuming after step ", "saved by 3 ranks"});
  expect_same_run("calm", "killed");
  expect_same_file("calm", "killed", "samples.jsonl");
  const std::string log = read_file(path("killed") + "/train.log");
  expect_parts(log, {"step 1/150", "resuming after step", "step 150/150"});
}

TEST_F(TrainResume, EndsAsIfNobodyHadInterruptedIt) {
  const std::string settings = mlp() + "--steps 600 --eval-every 7 --dropout 0.1 --log-every 1 ";
  train_well("calm", settings);
  interrupt_after("stopped", settings + "-n 2 --zero 1 --save-every 1000", "step 20/");
  EXPECT_EQ(summary("stopped").at("status"), "interrupted");
  interrupt_after("stopped", settings + "--zero 2 --save-every 1000", "step 200/");
  // What is not said is as it was.
  Finished last = run_program({trireme_binary(), "train", "--resume", path("stopped"), "-n", "3"});
  EXPECT_EQ(last.code, 0) << last.err;
  expect_same_run("calm", "stopped");
  EXPECT_EQ(summary("stopped").at("zero"), 2);
  EXPECT_EQ(summary("stopped").at("ranks"), 3);
}

TEST_F(TrainResume, GoesOnFromAnyStepOfAnyModel) {
  const std::vector<std::pair<std::string, std::string>> models = {
      {"convnet",
       convnet() + "--dropout 0.3 --shift 1 --flip --noise 0.1 --normalise standard --ema-decay "
                   "0.9 "},
      {"wide", wide() + "--optimizer adagrad "},
      {"lazy", wide(Rows::kTable) + "--sparse-update lazy --precision bfloat16 "},
      {"bert", bert() + "--dropout 0.2 "},
      {"half", gpt() + "--precision float16 --loss-scale-window 2 --optimizer lamb "},
  };
  for (const auto& [name, model] : models) {
    const std::string settings = model + "--steps 8 --eval-every 3 --save-every 2 --keep-last 0";
    train_well(name, settings + " -n 2 --zero 3");
    for (const auto& [step, ranks] : {std::pair("2", "1"), std::pair("6", "3")}) {
      const std::string again = name + step;
      copy(name, again);
      train_well(again, std::string("--resume ") + step + " -n " + ranks + " --zero 1");
      expect_same_run(name, again);
      if (name == "convnet") {
        expect_same_file(name, again, "average.safetensors");
      }
    }
  }
}

TEST_F(TrainResume, EndsOnceMoreWhereItHadEnded) {
  const std::string settings = mlp() + "--steps 5 --eval-every 2 --save-every 2 ";
  train_well("run", settings + "-n 2");
  copy("run", "again");
  train_well("again", settings);
  expect_same_run("run", "again");
}

// With advice that works.
TEST_F(TrainResume, SaysThatNothingIsLeftToDo) {
  const auto resume = [&](const std::string& run, const Words& more = {}) {
    Words all = {trireme_binary(), "train", "--resume", path(run)};
    all.insert(all.end(), more.begin(), more.end());
    const Finished finished = run_program(all);
    EXPECT_EQ(finished.code, 0) << finished.err;
    return finished.out;
  };
  train_well("run", mlp() + "--steps 5 --save-every 2");
  expect_parts(resume("run"),
               {"all 5 steps are done",
                "trireme train --resume " + path("run") + " --steps N --allow-changes"});
  const std::string longer = resume("run", {"--steps", "7", "--allow-changes"});
  EXPECT_EQ(longer.find("steps are done"), std::string::npos) << longer;
  EXPECT_EQ(summary("run").at("steps"), 7);
  // 60 images, 12 in a batch.
  train_well("epochs", mlp() + "--epochs 2 --save-every 5");
  expect_parts(resume("epochs"), {"all 10 steps are done", "--epochs N --allow-changes"});
  resume("epochs", {"--epochs", "3", "--allow-changes"});
  EXPECT_EQ(summary("epochs").at("steps"), 15);
  // One that has stopped early: nothing improves without a learning rate worth the name.
  train_well("early",
             mlp() +
                 "--steps 50 --eval-every 1 --early-stop 2 --lr 1e-30 --weight-decay 0 "
                 "--save-every 50");
  const std::int64_t before = summary("early").at("steps");
  ASSERT_LT(before, 50);
  expect_parts(resume("early"), {"nothing is left to train", "--early-stop 0 --allow-changes"});
  EXPECT_EQ(summary("early").at("steps"), before);
  resume("early", {"--early-stop", "0", "--allow-changes"});
  EXPECT_EQ(summary("early").at("steps"), 50);
}

// Asked again with other flags, which train nothing.
TEST_F(TrainResume, AskedAgainSaysWhatItWasTrainedWith) {
  const std::string settings = mlp() + "--steps 6 --eval-every 2 --save-every 2 ";
  train_well("run", settings + "-n 2 --zero 1");
  const Json before = summary("run");
  EXPECT_EQ(before.at("ranks"), 2);
  EXPECT_FALSE(before.contains("steps_by_ranks"));
  for (const std::string flags : {"-n 1 --zero 0", "-n 3 --zero 3", "--zero 2", ""}) {
    for (const std::string& start : {settings, "--resume " + path("run") + " "}) {
      const Finished again = train("run", start + flags);
      EXPECT_EQ(again.code, 0) << again.err;
      expect_parts(again.out, {"all 6 steps are done", "  2, ZeRO-1, float32\n"});
      const Json after = summary("run");
      for (const char* name : {"ranks", "zero", "steps", "memory", "metrics", "machine"}) {
        EXPECT_EQ(after.at(name), before.at(name)) << name << " " << flags;
      }
      EXPECT_FALSE(after.contains("steps_by_ranks"));
      EXPECT_FALSE(after.contains("rank_changes"));
      const Json config = read_json(path("run") + "/config.json");
      EXPECT_EQ(config.at("ranks"), 2);
      EXPECT_EQ(config.at("zero"), 1);
    }
  }
  // Also where what changes the result is allowed: nothing was trained with it.
  const Finished rate = train("run", settings + "-n 1 --lr 0.5 --allow-changes");
  EXPECT_EQ(rate.code, 0) << rate.err;
  EXPECT_EQ(read_json(path("run") + "/config.json").at("lr"), 0.001);
}

TEST_F(TrainResume, SaysWhichStepsWereTakenWithHowManyRanks) {
  const std::string settings = mlp() + "--eval-every 2 --save-every 2 --schedule constant ";
  train_well("run", settings + "--steps 4 -n 2");
  train_well("run", settings + "--steps 5 -n 3 --allow-changes");
  train_well("run", settings + "--steps 8 -n 2 --allow-changes");
  train_well("run", settings + "--steps 8 -n 1");
  const Json expected = testing::parse_json(R"([{"from":1,"to":4,"ranks":2},)"
                                            R"({"from":5,"to":5,"ranks":3},)"
                                            R"({"from":6,"to":8,"ranks":2}])");
  EXPECT_EQ(summary("run").at("steps_by_ranks"), expected);
  EXPECT_EQ(summary("run").at("ranks"), 2);
  EXPECT_EQ(summary("run").at("rank_changes").at("times"), 2);
  expect_parts(read_file(path("run") + "/train.log"),
               {"2 in steps 1 to 4, 3 in step 5, 2 in steps 6 to 8, DDP"});
  train_well("alone", settings + "--steps 8 -n 1");
  const Finished compared = run_program({trireme_binary(), "compare", path("alone"), path("run")});
  EXPECT_EQ(compared.code, 0) << compared.err;
  expect_parts(compared.out,
               {"2 in steps 1 to 4, 3 in step 5, 2 in steps 6 to 8): its speed is the mean"});
  EXPECT_EQ(compared.out.find("times the speed of 1"), std::string::npos) << compared.out;
}

// --- settings

TEST_F(TrainResume, RefusesOtherSettingsAndChangesNothing) {
  const std::string settings = mlp() + "--steps 6 --eval-every 2 --save-every 2 ";
  train_well("run", settings);
  const auto before = contents("run");
  const std::vector<std::pair<std::string, Words>> cases = {
      {settings + "--lr 0.5 --seed 9 -n 2 --zero 1",
       {"lr: 0.001 in the checkpoint, 0.5 now",
        "seed: 1 in the checkpoint, 9 now",
        "--allow-changes",
        "--run"}},
      {"--micro-batch share -n 2", {"micro_batch: \"2\" in the checkpoint, \"6\" now"}},
      {"--model gpt", {"--model: the run in", "is of the model mlp", "another folder"}},
      {"--hidden 8,8", {"hidden: [16] in the checkpoint, [8,8] now"}},
      {"--lr-scaling linear", {"lr_scaling"}},
      {"--resume 3", {"step", "2, 4, 6", "3"}},
      {"--resume " + path("other"), {"--resume", path("run"), path("other")}},
      // What no flag allows: a cross-validation in the folder of a training, and weights that a
      // run which has its own would not look at.
      {"--folds 2 --allow-changes", {"--folds: the run in", "is one training"}},
      {"--weights-from " + path("run") + " --steps 7 --allow-changes",
       {"--weights-from: the run in", "is resumed with the weights that it has"}},
      {"--resume never", {"already holds a run"}},
      {"--resume never --tensorboard off", {"already holds a run"}},
  };
  for (const auto& [given, parts] : cases) {
    const Finished refused = train("run", given);
    EXPECT_EQ(refused.code, 2) << given << refused.out;
    expect_parts(refused.err, parts);
    EXPECT_EQ(refused.err.find("zero"), std::string::npos) << "changes no bit: " << refused.err;
    EXPECT_TRUE(contents("run") == before) << given << ": something in the folder has changed";
  }
}

TEST_F(TrainResume, GoesOnWithOtherSettingsWhereThatIsAllowed) {
  train_well("run", mlp() + "--steps 6 --eval-every 2 --save-every 2 --schedule constant");
  const Words before = history(path("run"));
  const Finished longer = train("run", "--steps 9 --lr 0.25 --allow-changes");
  EXPECT_EQ(longer.code, 0) << longer.err;
  expect_parts(longer.out, {"steps: 6 in the checkpoint, 9 now", "0.25 now"});
  const Words after = history(path("run"));
  EXPECT_EQ(Words(after.begin(), after.begin() + static_cast<std::ptrdiff_t>(before.size())),
            before);
  EXPECT_EQ(testing::parse_json(after[before.size()]).at("lr"), 0.25);
  EXPECT_EQ(testing::parse_json(after.back()).at("step"), 9);
  EXPECT_EQ(read_json(path("run") + "/config.json").at("lr"), 0.25);
  // It held for that start only.
  const Finished again = train("run", "--lr 0.125");
  EXPECT_EQ(again.code, 2);
  expect_parts(again.err, {"lr: 0.25 in the checkpoint, 0.125 now"});
}

TEST_F(TrainResume, ARunThatWasKilledBeforeItsFirstCheckpointBeginsAnew) {
  const std::string settings = mlp() + "--steps 6 --save-every 4 ";
  train_well("run", settings);
  const Words before = history(path("run"));
  // As SIGKILL leaves it: some steps are recorded, nothing is saved.
  std::filesystem::remove_all(path("run") + "/checkpoints");
  std::filesystem::remove(path("run") + "/summary.json");
  const Finished other = train("run", settings + "--lr 0.5");
  EXPECT_EQ(other.code, 2);
  expect_parts(other.err, {"already holds a run"});
  const Finished never = train("run", settings + "--resume never");
  EXPECT_EQ(never.code, 2);
  const Finished again = train("run", settings);
  EXPECT_EQ(again.code, 0) << again.err;
  expect_parts(again.out, {"ended before its first checkpoint"});
  EXPECT_EQ(history(path("run")), before);
}

// It has not recorded the settings that came later.
TEST_F(TrainResume, ARunOfAnOlderVersionThatWasKilledBeforeItsFirstCheckpointBeginsAnew) {
  const std::string settings = mlp() + "--steps 6 --save-every 4 ";
  train_well("run", settings);
  const Words before = history(path("run"));
  std::filesystem::remove_all(path("run") + "/checkpoints");
  std::filesystem::remove(path("run") + "/summary.json");
  auto config = read_json(path("run") + "/config.json");
  config.erase("decay_all");
  config.erase("optimizer_options");
  data_.write("run/config.json", config.dump());
  const Finished other = train("run", settings + "--optimizer-options amsgrad");
  EXPECT_EQ(other.code, 2);
  expect_parts(other.err, {"already holds a run"});
  const Finished again = train("run", settings);
  EXPECT_EQ(again.code, 0) << again.err;
  expect_parts(again.out, {"ended before its first checkpoint"});
  EXPECT_EQ(history(path("run")), before);
}

// An elastic job may have had fewer ranks in the end, and a machine fewer processors than before:
// their number changes no bit of what is trained again.
TEST_F(TrainResume, ARunOfOtherRanksThatWasKilledBeforeItsFirstCheckpointBeginsAnew) {
  const std::string settings = mlp() + "--steps 6 --save-every 4 ";
  train_well("run", settings + "-n 2");
  const Words before = history(path("run"));
  std::filesystem::remove_all(path("run") + "/checkpoints");
  std::filesystem::remove(path("run") + "/summary.json");
  const Finished again = train("run", settings + "-n 1 --zero 3 --log-every 5");
  EXPECT_EQ(again.code, 0) << again.err;
  expect_parts(again.out, {"ended before its first checkpoint"});
  EXPECT_EQ(history(path("run")), before);
}

// What starts a job again and again, such as systemd, has one command for every start.
TEST_F(TrainResume, OneCommandIsRightForEveryStart) {
  for (const std::string more : {"--steps 8 --save-every 2", "--epochs 1 --folds 3"}) {
    const std::string run = more.find("folds") == std::string::npos ? "run" : "folds";
    train_well(run + "-calm", mlp() + more);
    kill_after(run, mlp() + more + " --log-every 1", "step 3/");
    for (int start = 0; start < 3; ++start) {  // in the middle, and twice after the end
      const Finished again = train(run, mlp() + more + " --log-every 1");
      EXPECT_EQ(again.code, 0) << more << start << again.out << again.err;
    }
    const std::string part = run == "run" ? "" : "/fold-3";
    EXPECT_EQ(history(path(run + part)), history(path(run + "-calm" + part))) << more;
  }
}

TEST_F(TrainResume, ARunWhoseRankWasKilledBeforeItsFirstCheckpointBeginsAnew) {
  const std::string settings = mlp() + "--steps 6 --save-every 4 ";
  train_well("run", settings);
  const Words before = history(path("run"));
  // As it is left by a failure that the other ranks have survived.
  std::filesystem::remove_all(path("run") + "/checkpoints");
  data_.write("run/summary.json", R"({"status": "failed", "reason": "rank 1 was killed"})");
  const Finished again = train("run", settings);
  EXPECT_EQ(again.code, 0) << again.err;
  expect_parts(again.out, {"ended before its first checkpoint"});
  EXPECT_EQ(history(path("run")), before);
  EXPECT_EQ(summary("run").at("status"), "finished");
}

TEST_F(TrainResume, KnowsItsDataFromOtherDataOfTheSameSize) {
  train_well("run", mlp() + "--steps 6 --save-every 3");
  copy("run", "other");
  const std::string labels = path("train-labels-idx1-ubyte");
  std::string bytes = testing::read_file(labels);
  std::rotate(bytes.begin() + 8, bytes.begin() + 9, bytes.end());
  data_.write("train-labels-idx1-ubyte", bytes);
  const std::string latest = testing::read_file(path("other") + "/checkpoints/latest");
  EXPECT_FALSE(latest.empty());
  const Finished refused = train("other", "--resume 3");
  EXPECT_EQ(refused.code, 2) << refused.out;
  expect_parts(refused.err, {"samples other than", data_.path(), "--allow-changes"});
  EXPECT_EQ(testing::read_file(path("other") + "/checkpoints/latest"), latest)
      << "what is refused gives nothing up";
  const Finished allowed = train("other", "--resume 3 --allow-changes");
  EXPECT_EQ(allowed.code, 0) << allowed.err;
}

// The order of sums is one of the things that bits depend on.
TEST_F(TrainResume, KeepsTheSumGroup) {
  train_well("run", mlp() + "-n 2 --sum-group 2 --steps 6 --save-every 3");
  copy("run", "other");
  const Finished refused = train("other", "--resume 3");
  EXPECT_EQ(refused.code, 2) << refused.out;
  expect_parts(refused.err, {"groups of 2 ranks", "found 1", "--sum-group 2"});
  copy("run", "same");
  train_well("same", "--resume 3 --sum-group 2");
  expect_same_run("run", "same");
}

TEST_F(TrainResume, NamesTheProcessOfARunThatHasSavedNothingYet) {
  Program program(command("run", mlp() + "--steps 1000000 --log-every 1 --save-every 900000"));
  ASSERT_TRUE(program.wait_for_output("step 2/"));
  const Finished refused = run_program({trireme_binary(), "train", "--resume", path("run")});
  EXPECT_EQ(refused.code, 2) << refused.out;
  expect_parts(refused.err, {path("run"), "being written by another job, process "});
  EXPECT_EQ(refused.err.find("found none"), std::string::npos) << refused.err;
  for (const pid_t rank : program.children()) {
    kill(rank, SIGKILL);
  }
  program.wait();
  const Finished killed = run_program({trireme_binary(), "train", "--resume", path("run")});
  EXPECT_EQ(killed.code, 2) << killed.out;
  expect_parts(killed.err, {"found none", "step 900000", "starts it over"});
}

TEST_F(TrainResume, SaysWhereThereIsNothingToGoOnFrom) {
  train_well("run", mlp() + "--steps 2");
  fs::create_directories(path("early/other"));
  fs::create_directories(path("exports/gpt2"));
  data_.write("early/config.json", R"({"model": "mlp", "save_every": 20})");
  // What other programs call by the same name.
  data_.write("early/other/config.json", R"({"name": "other"})");
  data_.write("exports/gpt2/config.json", R"({"model_type": "gpt2"})");
  // A run of which nothing is left but its settings, as one that was killed leaves it.
  fs::create_directories(path("killed"));
  fs::copy_file(path("run") + "/config.json", path("killed") + "/config.json");
  fs::create_directories(path("crossed/fold-1"));
  fs::copy_file(path("run") + "/config.json", path("crossed/config.json"));
  const std::string anew = "trireme train --config " + path("killed") + "/config.json --run NEW";
  const std::vector<std::pair<Words, Words>> cases = {
      {{"--resume", path("early")}, {path("early"), "found none", "step 20", "starts it over"}},
      {{"--run", path("run"), "--resume"}, {path("run"), "found none", "--save-every"}},
      {{"--resume", path("run")},
       {"trireme train --config " + path("run") + "/config.json --weights-from " + path("run") +
        " --run NEW"}},
      {{"--resume", path("killed")}, {"found none", "--save-every", anew}},
      {{"--run",
        path("new"),
        "--data",
        data_.path(),
        "--batch",
        "12",
        "--weights-from",
        path("killed")},
       {"--weights-from", path("killed"), "has saved no weights", anew}},
      {{"--run",
        path("new"),
        "--data",
        data_.path(),
        "--batch",
        "12",
        "--weights-from",
        path("crossed")},
       {path("crossed"), path("crossed/fold-1")}},
      {{"--run", path("run")}, {path("run"), "already holds a run"}},
      {{"--resume", path("nowhere")}, {path("nowhere"), "found nothing"}},
      {{"--resume", path("run") + "/logs"}, {"belongs to the run in \"" + path("run") + "\""}},
      {{"--resume", path("run") + "/.."}, {"found no config.json", "one of the runs in it"}},
      {{"--resume", path("early/other")},
       {"found a config.json without a model", "belongs to the run in \"" + path("early") + "\""}},
      {{"--resume", path("exports/gpt2")}, {"of Hugging Face", "trireme ckpt import"}},
      {{"--resume", path("exports")}, {"found no config.json", "trireme train says"}},
      {{"--resume"}, {"--resume", "--run"}},
      {{"--resume", "7"}, {"--resume", "--run"}},
      {{"--weights-partial"}, {"--weights-partial: ", "weights_from"}},
      {{"--snapshot-limit", "much"}, {"--snapshot-limit: ", "much"}},
      {{"--save-every", "-1"}, {"--save-every: ", "-1"}},
  };
  for (const auto& [given, parts] : cases) {
    Words command = {trireme_binary(), "train", "--model", "mlp"};
    command.insert(command.end(), given.begin(), given.end());
    const Finished refused = run_program(command);
    EXPECT_EQ(refused.code, 2) << refused.out;
    expect_parts(refused.err, parts);
  }
}

TEST_F(TrainResume, KnowsItsSettingsFromTheCheckpointWhereTheyAreLost) {
  train_well("run", mlp() + "--steps 6 --eval-every 2 --save-every 2 --lr 0.125");
  for (const bool empty : {false, true}) {
    const std::string again = empty ? "empty" : "missing";
    copy("run", again);
    fs::remove(path(again) + "/config.json");
    if (empty) {
      data_.write("empty/config.json", "");
    }
    train_well(again, "--resume 4");
    expect_same_run("run", again);
    EXPECT_EQ(read_json(path(again) + "/config.json").at("lr"), 0.125);
  }
}

TEST_F(TrainResume, ShowsTheSettingsItWouldGoOnWith) {
  train_well("run", mlp() + "--steps 2 --save-every 1 --lr 0.125 -n 2");
  const Finished shown = train("run", "-n 3 --print-config");
  ASSERT_EQ(shown.code, 0) << shown.err;
  const Json config = testing::parse_json(shown.out);
  EXPECT_EQ(config.at("lr"), 0.125);
  EXPECT_EQ(config.at("micro_batch"), "2");
  EXPECT_EQ(config.at("ranks"), 3);
}

// Whoever only wanted more steps hears of data that is not the same any more; and of the ranks.
TEST_F(TrainResume, SaysWhatHasChangedBesideSettings) {
  const auto rows = [&](const std::string& first) {
    std::string text = "x,y\n" + first + ",a\n";
    for (int i = 0; i < 60; ++i) {
      text += std::to_string(i) + (i % 2 == 0 ? ",a\n" : ",b\n");
    }
    return data_.write("rows.csv", text);
  };
  const std::string settings =
      "--model mlp --hidden 4 --batch 8 --micro-batch 2 --save-every 2 --threads 1 --data " +
      rows("1") + " --steps ";
  train_well("run", settings + "4 -n 2");
  const Finished same = train("run", settings + "6 -n 1 --allow-changes");
  EXPECT_EQ(same.code, 0) << same.err;
  EXPECT_EQ(same.out.find("other samples"), std::string::npos) << same.out;
  EXPECT_EQ(summary("run").at("rank_changes").at("times"), 1);
  EXPECT_EQ(summary("run").at("rank_changes").at("left"), 1);
  rows("1.5");
  const Finished changed = train("run", settings + "8 -n 1 --allow-changes");
  EXPECT_EQ(changed.code, 0) << changed.err;
  expect_parts(changed.out, {"warning: the checkpoint was trained on other samples than those of"});
}

// From another folder, too; one that has a file of this name is asked first, as ever.
TEST_F(TrainResume, FindsDataWhoseNameIsRelative) {
  const auto in_folder = [](const std::string& folder, Words call) {
    call.insert(call.begin(), {"/bin/sh", "-c", "cd \"$0\" && exec \"$@\"", folder});
    return run_program(call);
  };
  const std::string settings = gpt() + "--steps 4 --save-every 2 --data text.txt";
  ASSERT_EQ(in_folder(data_.path(), command("run", settings)).code, 0);
  const Words resume = {
      trireme_binary(), "train", "--resume", path("run"), "--steps", "6", "--allow-changes"};
  const Finished resumed = in_folder("/", resume);
  EXPECT_EQ(resumed.code, 0) << resumed.out << resumed.err;
  EXPECT_EQ(testing::read_json(path("run") + "/config.json").at("data"), "text.txt");
  const Finished same = in_folder("/", command("run", settings + " --steps 6 --threads 1"));
  EXPECT_EQ(same.code, 0) << same.out << same.err;
  fs::rename(path("text.txt"), path("book.txt"));
  const Finished refused = in_folder("/", resume);
  EXPECT_EQ(refused.code, 2) << refused.out << refused.err;
  expect_parts(
      refused.err,
      {"--data: expected a file or folder",
       "\"text.txt\" in \"/\" nor in \"" + data_.path() + "\", where the run was started"});
}

// --- what goes wrong

TEST_F(TrainResume, RefusesAFolderInWhichARunIsAlive) {
  const std::string settings = mlp() + "--steps 1000000 --log-every 1 ";
  const std::string mark = testing::unique_mark();
  signal(SIGINT, SIG_DFL);
  for (const std::string& first : {std::string("--save-every 5"),
                                   std::string("--save-every 9999999"),
                                   std::string("--save-every 0")}) {
    fs::remove_all(path("run"));
    Program program(command("run", settings + first), {mark});
    ASSERT_TRUE(program.wait_for_output("step 20/"));
    const auto ranks = program.children();
    ASSERT_EQ(ranks.size(), 1U);
    for (const char* second : {"--save-every 5", "--save-every 0", "--resume never"}) {
      const Finished refused = train("run", settings + second);
      EXPECT_EQ(refused.code, 2) << first << " and " << second << ": " << refused.out;
      expect_parts(refused.err, {"another job", "process " + std::to_string(ranks[0])});
    }
    kill(program.pid(), SIGINT);
    EXPECT_EQ(program.wait().code, 128 + SIGINT);
    std::int64_t step = 0;
    for (const Json& line : testing::read_json_lines(path("run") + "/metrics.jsonl")) {
      step += line.contains("eval") ? 0 : 1;
      EXPECT_EQ(line.at("step"), step) << "neither a gap nor anything twice";
    }
    EXPECT_EQ(summary("run").at("steps"), step);
  }
}

TEST_F(TrainResume, NamesWhatIsDamaged) {
  const std::string settings = mlp() + "--steps 6 --eval-every 2 --save-every 2 -n 2 ";
  train_well("run", settings);
  copy("run", "manifest");
  copy("run", "missing");
  copy("run", "bare");

  const std::string data = newest("run", "rank-00001.safetensors");
  std::string bytes = read_file(data);
  bytes[bytes.size() - 3] = static_cast<char>(bytes[bytes.size() - 3] ^ 4);
  std::ofstream(data, std::ios::binary) << bytes;
  const std::string manifest = newest("manifest", "manifest.json");
  std::ofstream(manifest, std::ios::binary) << read_file(manifest).substr(0, 300);
  const std::string missing = newest("missing", "rank-00000.safetensors");
  fs::remove(missing);
  const std::string bare = newest("bare", "manifest.json");
  fs::remove(bare);

  std::string advice;
  for (const auto& [run, file] : {std::pair("run", data),
                                  std::pair("manifest", manifest),
                                  std::pair("missing", missing),
                                  std::pair("bare", bare)}) {
    const auto before = contents(run);
    const Finished refused = train(run, settings + "--timeout 77");
    EXPECT_EQ(refused.code, 3) << run << refused.out;
    expect_parts(refused.err, {file, "--resume STEP", "2, 4"});
    advice = advised(refused.err, "to resume it from the checkpoint before: ");
    EXPECT_EQ(refused.err.find("trireme train --resume"), std::string::npos) << refused.err;
    expect_parts(advice, {" --run " + path(run) + " --resume 4", " --timeout 77 "});
    auto after = contents(run);
    std::erase_if(after,
                  [](const auto& each) { return each.first.find("/logs/") != std::string::npos; });
    auto expected = before;
    std::erase_if(expected,
                  [](const auto& each) { return each.first.find("/logs/") != std::string::npos; });
    EXPECT_TRUE(after == expected) << run << ": something in the folder has changed";
    const Finished resumed = run_program(followed(advice));
    EXPECT_EQ(resumed.code, 0) << advice << "\n" << resumed.err;
    EXPECT_EQ(testing::read_json(path(run) + "/config.json").at("timeout"), 77);
  }
  expect_same_run("run", "manifest");

  // Neither the one that was asked for nor those that are damaged as well.
  train_well("several", settings + "--steps 8 --keep-last 0");
  fs::remove(path("several") + "/checkpoints/step-00000004/rank-00000.safetensors");
  fs::remove(newest("several", "manifest.json"));
  const Finished named =
      run_program({trireme_binary(), "train", "--run", path("several"), "--resume", "4"});
  EXPECT_EQ(named.code, 3) << named.out;
  expect_parts(named.err, {"of step 2, 6\n"});
  expect_parts(advised(named.err, "to resume it from the checkpoint before: "), {"--resume 2"});

  // Without another one.
  train_well("single", settings + "--keep-last 1");
  fs::remove(newest("single", "manifest.json"));
  const Finished refused = run_program({trireme_binary(), "train", "--resume", path("single")});
  EXPECT_EQ(refused.code, 3) << refused.out;
  Words again = followed(advised(refused.err, "to train it again: "));
  ASSERT_EQ(again.back(), "NEW");
  again.back() = path("again");
  EXPECT_EQ(run_program(again).code, 0);
  EXPECT_EQ(history(path("again")), history(path("run")));
}

// Files may not grow beyond a limit, which the system says as it says that a disk is full.
TEST_F(TrainResume, StopsWhenACheckpointCannotBeWritten) {
  const std::string settings =
      gpt() + "--width 256 --layers 2 --steps 100000 --save-every 3 --save-weights off";
  const std::string mark = testing::unique_mark();
  Words shell = command("run", settings);
  shell.insert(shell.begin(), {"bash", "-c", "ulimit -f 4096; exec \"$0\" \"$@\""});
  const Finished finished = run_program(shell, {mark});
  EXPECT_EQ(finished.code, 3) << finished.out;
  expect_parts(finished.err, {path("run") + "/checkpoints/", "File too large"});
  EXPECT_TRUE(processes_with(mark).empty());
  EXPECT_EQ(summary("run").at("status"), "failed");
  EXPECT_GE(history(path("run")).size(), 3U);
  for (const auto& entry : fs::directory_iterator(path("run") + "/checkpoints")) {
    EXPECT_FALSE(entry.path().filename().string().starts_with("step-")) << entry.path();
  }
}

// What a message says to do is done, word for word.
TEST_F(TrainResume, ARunWithoutCheckpointsLendsItsSettingsAndWeights) {
  train_well("run", mlp() + "--steps 3 --save-initial");
  const Finished refused = train("run", mlp() + "--steps 3");
  EXPECT_EQ(refused.code, 2) << refused.out;
  Words command = followed(advised(refused.err, "settings and weights: "));
  ASSERT_EQ(command.back(), "NEW") << refused.err;
  command.back() = path("new");
  const Finished started = run_program(command);
  ASSERT_EQ(started.code, 0) << started.err;
  EXPECT_TRUE(read_file(path("new") + "/initial.safetensors") ==
              read_file(path("run") + "/model.safetensors"));
  EXPECT_EQ(history(path("new")).size(), history(path("run")).size());
}

// --- weights of another run

TEST_F(TrainResume, BeginsWithTheWeightsOfAnother) {
  train_well("source", convnet() + "--steps 4 --save-every 2 -n 2 --zero 3");
  const std::string model = read_file(path("source") + "/model.safetensors");
  const std::vector<std::pair<std::string, std::string>> sources = {
      {"run", path("source")},
      {"checkpoint", path("source") + "/checkpoints/step-00000004"},
      {"file", path("source") + "/model.safetensors"},
  };
  for (const auto& [name, source] : sources) {
    train_well(name, convnet() + "--steps 1 --save-initial --weights-from " + source);
    EXPECT_TRUE(read_file(path(name) + "/initial.safetensors") == model) << name;
    EXPECT_EQ(history(path(name)), history(path("run"))) << name;
    // Also where no rank has a parameter whole, and where parameters are rounded.
    train_well(name + "-3",
               convnet() + "--steps 1 --save-initial -n 3 --zero 3 --weights-from " + source);
    EXPECT_TRUE(read_file(path(name + "-3") + "/initial.safetensors") == model) << name;
    EXPECT_EQ(history(path(name + "-3")), history(path("run"))) << name;
  }
  const std::string half = convnet() +
                           "--steps 2 --precision bfloat16 --ema-decay 0.5 "
                           "--weights-from " +
                           path("source");
  EXPECT_EQ(train_well("half", half), train_well("half-3", half + " -n 3 --zero 3"));
  expect_same_file("half", "half-3", "average.safetensors");
}

TEST_F(TrainResume, ListsAllWeightsThatDoNotFit) {
  train_well("source", mlp() + "--steps 1 --save-every 1");
  const std::string other =
      "--hidden 16,5 --steps 1 --save-initial --weights-from " + path("source");
  const Finished refused = train("other", mlp() + other);
  EXPECT_EQ(refused.code, 2) << refused.out;
  expect_parts(refused.err,
               {"weights_from", "missing", "expected", "[3, 16]", "--weights-partial"});
  EXPECT_FALSE(fs::exists(path("other") + "/metrics.jsonl"));
  const Finished partial = train("other", mlp() + other + " --weights-partial");
  EXPECT_EQ(partial.code, 0) << partial.err;
  expect_parts(partial.out, {"starting from the weights of", "not loaded", "[3, 16]"});
  const Finished nothing = train("none", mlp() + "--steps 1 --weights-from " + path("nowhere"));
  EXPECT_EQ(nothing.code, 2);
  expect_parts(nothing.err, {"trireme: --weights-from: expected", "nothing", path("nowhere")});
}

}  // namespace
}  // namespace trireme::train_resume_test
