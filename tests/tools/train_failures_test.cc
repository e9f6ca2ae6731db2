// How trireme train ends when it cannot go on.

#include <filesystem>

#include <signal.h>

#include "tools/train_runs.h"
#include "trireme/checkpoint/safetensors.h"
#include "trireme/core/machine.h"

namespace trireme::train_failures_test {
namespace {

namespace fs = std::filesystem;
using testing::big_endian;
using testing::expect_parts;
using testing::Finished;
using testing::Json;
using testing::processes_with;
using testing::Program;
using testing::run_program;
using testing::trireme_binary;
using testing::Words;

class TrainFailures : public testing::TrainRuns {
 protected:
  // A failure with this code that names these things, shows no insides and leaves nothing running.
  void expect_failure(const std::string& settings, int code, const Words& parts) {
    const std::string mark = testing::unique_mark();
    const Finished finished =
        run_program(command("run-" + std::to_string(++runs_), settings), {mark});
    EXPECT_EQ(finished.code, code) << settings << "\n" << finished.out << finished.err;
    expect_parts(finished.err, parts);
    for (const char* inside :
         {"Exception raised from", "frame #", "terminate called", ".cc:", "json.exception"}) {
      EXPECT_EQ(finished.err.find(inside), std::string::npos) << finished.err;
    }
    EXPECT_TRUE(processes_with(mark).empty());
  }

  void interrupt(int number, const std::string& settings) {
    const std::string mark = testing::unique_mark();
    signal(SIGINT, SIG_DFL);  // a shell may have had it ignored
    Program program(command("run", settings), {mark});
    ASSERT_TRUE(program.wait_for_output("step 10/"));
    kill(program.pid(), number);
    const Finished finished = program.wait();
    EXPECT_EQ(finished.code, 128 + number) << finished.out << finished.err;
    EXPECT_TRUE(processes_with(mark).empty());
  }

  void expect_valid_folder(const std::string& run) {
    const auto lines = testing::read_json_lines(path(run) + "/metrics.jsonl");
    ASSERT_GE(lines.size(), 10U);
    const Json summary = this->summary(run);
    EXPECT_EQ(summary.at("status"), "interrupted");
    EXPECT_EQ(summary.at("steps"), lines.back().at("step"));
    EXPECT_FALSE(SafetensorsFile(path(run) + "/model.safetensors").entries().empty());
    for (const auto& entry : fs::directory_iterator(path(run))) {
      EXPECT_EQ(entry.path().string().find(".partial"), std::string::npos) << entry.path();
    }
  }

  int runs_ = 0;
};

TEST_F(TrainFailures, StopAtAGradientThatIsNoNumber) {
  const Finished finished =
      train("run", gpt() + "-n 2 --zero 2 --steps 10 --lr 1e30 --clip-norm 0");
  EXPECT_EQ(finished.code, 3);
  expect_parts(finished.err,
               {"parameter ",
                "not finite",
                "on rank ",
                "in step 2",
                "--lr (it was 1e+30)",
                "--clip-norm 1"});
  EXPECT_EQ(finished.err.find("EngineOptions"), std::string::npos) << finished.err;
  // What ranks have told each other has nothing to do with it.
  EXPECT_EQ(finished.err.find("last operations"), std::string::npos) << finished.err;
  for (const auto& entry : fs::directory_iterator(path("run") + "/logs")) {
    EXPECT_NE(entry.path().filename().string().rfind("flight", 0), 0U) << entry.path();
  }
  const Json summary = this->summary("run");
  EXPECT_EQ(summary.at("status"), "failed");
  // The parameter that is named is one of the model's.
  const std::string reason = summary.at("reason");
  const std::string after = reason.substr(reason.find("parameter ") + 10);
  const std::string name = after.substr(0, after.find(' '));
  train_well("good", gpt() + "--steps 1");
  const SafetensorsFile weights(path("good") + "/model.safetensors");
  EXPECT_NO_THROW(weights.tensor(name)) << name;
  EXPECT_EQ(testing::history(path("run")).size(), 1U) << "the step before";
}

TEST_F(TrainFailures, EndInGoodOrderAfterCtrlC) {
  interrupt(SIGINT, gpt() + "-n 2 --zero 3 --steps 1000000");
  expect_valid_folder("run");
}

TEST_F(TrainFailures, EndInGoodOrderWhenTerminated) {
  interrupt(SIGTERM, mlp() + "-n 3 --steps 1000000 --eval-every 3");
  expect_valid_folder("run");
}

TEST_F(TrainFailures, SayWhichModelTakesATable) {
  const std::string table = data_.write("a.csv", "x,town,kind\n1,Rome,a\n2,Oslo,b\n");
  for (const std::string model : {"gpt", "convnet"}) {
    expect_failure(
        "--steps 1 --model " + model + " --data " + table, 2, {"does not take tables", "mlp"});
  }
  expect_failure("--steps 1 --model mlp -n 1 --data " + table, 2, {"\"Rome\"", "--categorical"});
  // A column that is not there is no fault of the table.
  expect_failure("--steps 1 --model mlp -n 2 --target knid --data " + table,
                 2,
                 {"target (--target): expected a column", "\"town\"", "did you mean \"kind\"?"});
}

// 1e39 is finite, so what is wrong with it has to be said.
TEST_F(TrainFailures, SayWhyANumberIsTooLarge) {
  const std::string table = data_.write("a.csv", "x,kind\n1e39,a\n2,b\n");
  expect_failure("--steps 1 --model mlp -n 1 --data " + table, 2, {"\"1e39\"", "float32"});
}

TEST_F(TrainFailures, NoticeTokensOutsideTheVocabularyBeforeTheFirstStep) {
  const auto tokens = [](std::uint16_t late) {
    std::vector<std::uint16_t> all(70'000, 49);
    all[69'980] = late;
    return testing::token_bytes(all);
  };
  const std::string good = data_.write("good.u16", tokens(49));
  const std::string bad = data_.write("bad.u16", tokens(50));
  for (const std::string& data :
       {good + " --eval-data " + bad, bad + " --vocabulary 50 --eval-data " + good}) {
    const std::string run = "run-" + std::to_string(runs_ + 1);
    expect_failure(gpt() + "--steps 2 --eval-every 0 --data " + data,
                   2,
                   {bad, "byte 139960", "expected a token below 50", "found 50"});
    EXPECT_FALSE(fs::exists(path(run) + "/metrics.jsonl")) << "nothing was trained";
  }
}

// Years, of which bfloat16 keeps every eighth.
TEST_F(TrainFailures, AreForetoldOfInputsThatSixteenBitsMerge) {
  std::string text = "year,kind\n";
  for (int i = 0; i < 64; ++i) {
    text += std::to_string(2000 + i % 16) + (i % 16 < 8 ? ",a\n" : ",b\n");
  }
  const std::string settings =
      "--model mlp --hidden 4 -n 1 --steps 1 --batch 4 --data " + data_.write("a.csv", text);
  for (const auto& [more, warns] : {std::pair<std::string, bool>{"", false},
                                    {" --precision bfloat16", true},
                                    {" --precision autocast", true},
                                    {" --precision float16", false},
                                    {" --precision bfloat16 --normalise standard", false}}) {
    const Finished finished = train("run-" + std::to_string(++runs_), settings + more);
    EXPECT_EQ(finished.code, 0) << finished.err;
    EXPECT_EQ(finished.err.find("only every 8th whole number") != std::string::npos, warns)
        << more << finished.err;
  }
}

// As GNU timeout ends it: one signal for the program, one for its group.
TEST_F(TrainFailures, SaveACheckpointWhenTerminatedTwiceAtOnce) {
  Program program(command("run", mlp() + "-n 2 --steps 1000000 --save-every 1000000"));
  ASSERT_TRUE(program.wait_for_output("step 10/"));
  kill(program.pid(), SIGTERM);
  run_program({"sleep", "0.02"});
  kill(program.pid(), SIGTERM);
  const Finished finished = program.wait();
  EXPECT_EQ(finished.code, 128 + SIGTERM) << finished.out << finished.err;
  expect_valid_folder("run");
  EXPECT_TRUE(fs::exists(path("run") + "/checkpoints/latest"));
}

TEST_F(TrainFailures, EndCrossValidationInGoodOrder) {
  interrupt(SIGINT, mlp() + "-n 2 --steps 1000000 --folds 3");
  expect_valid_folder("run/fold-1");
  EXPECT_EQ(summary("run").at("status"), "interrupted");
}

TEST_F(TrainFailures, DoNotCountAFoldThatWasInterrupted) {
  signal(SIGINT, SIG_DFL);  // a shell may have had it ignored
  Program program(command("run", mlp() + "--steps 1000000 --eval-every 2 --log-every 1 --folds 3"));
  ASSERT_TRUE(program.wait_for_output("step 9/"));
  kill(program.pid(), SIGINT);
  const Finished finished = program.wait();
  EXPECT_EQ(finished.code, 128 + SIGINT) << finished.out << finished.err;
  expect_parts(finished.out, {"interrupted in fold 1: no fold finished"});
  const Json summary = this->summary("run");
  EXPECT_TRUE(summary.at("metrics").empty()) << summary;
  EXPECT_EQ(summary.at("status"), "interrupted");
}

TEST_F(TrainFailures, CountOnlyTheFoldsThatWereEvaluated) {
  Program program(command("run", mlp() + "--steps 1500 --eval-every 100000 --folds 3"));
  ASSERT_TRUE(program.wait_for_output("fold 2 of 3"));
  kill(program.pid(), SIGTERM);
  const Finished finished = program.wait();
  EXPECT_EQ(finished.code, 128 + SIGTERM) << finished.out << finished.err;
  const Json summary = this->summary("run");
  ASSERT_EQ(summary.at("folds").size(), 2U);
  ASSERT_TRUE(summary.at("folds").at(0).contains("loss"));
  ASSERT_FALSE(summary.at("folds").at(1).contains("loss")) << "it was not stopped in time";
  ASSERT_TRUE(summary.at("metrics").contains("loss"));
  for (const auto& [name, mean] : summary.at("metrics").items()) {
    double sum = 0;
    int count = 0;
    for (const Json& fold : summary.at("folds")) {
      sum += fold.value(name, 0.0);
      count += fold.contains(name) ? 1 : 0;
    }
    EXPECT_NEAR(mean.get<double>(), sum / count, 1e-12) << name << " of " << count << " folds";
  }
}

TEST_F(TrainFailures, KeepTheFoldsThatHadEndedWhenKilled) {
  const std::string mark = testing::unique_mark();
  Program program(command("run", mlp() + "-n 2 --steps 300 --folds 3"), {mark});
  ASSERT_TRUE(program.wait_for_output("fold 2 of 3"));
  for (const auto pid : processes_with(mark)) {
    kill(pid, SIGKILL);
  }
  program.wait();
  EXPECT_EQ(summary("run/fold-1").value("status", ""), "finished");
  EXPECT_EQ(testing::read_rows(path("run") + "/fold-1/evaluation.csv").size(), 20U);
}

TEST_F(TrainFailures, EndWhenInterruptedBeforeTheFirstStep) {
  const std::string mark = testing::unique_mark();
  signal(SIGINT, SIG_DFL);
  for (const int milliseconds : {1, 100, 300}) {
    for (const std::size_t ranks : {0, 2}) {  // that there are when the time begins to count
      fs::remove_all(path("run"));
      Program program(command("run", gpt() + "-n 2 --steps 1000000"), {mark});
      ASSERT_TRUE(testing::comes_true([&] { return program.children().size() >= ranks; }));
      run_program({"sleep", std::to_string(milliseconds / 1000.0)});
      kill(program.pid(), SIGINT);
      const Finished finished = program.wait();
      EXPECT_EQ(finished.code, 128 + SIGINT) << milliseconds << finished.out << finished.err;
      EXPECT_TRUE(processes_with(mark).empty());
    }
  }
}

TEST_F(TrainFailures, NameTheRankThatWasKilled) {
  const std::string mark = testing::unique_mark();
  Program program(command("run", gpt() + "-n 3 --zero 3 --steps 1000000"), {mark});
  ASSERT_TRUE(program.wait_for_output("step 10/"));
  const auto ranks = program.children();
  ASSERT_EQ(ranks.size(), 3U);
  kill(ranks[1], SIGKILL);
  const Finished finished = program.wait();
  EXPECT_EQ(finished.code, 3);
  expect_parts(finished.err, {"rank 1 of 3", "was killed by signal 9 (Killed)"});
  EXPECT_TRUE(processes_with(mark).empty());
  EXPECT_EQ(summary("run").at("status"), "failed");
}

// Files may not grow beyond a limit, which the system says as it says that a disk is full.
TEST_F(TrainFailures, NameTheFileThatCouldNotBeWritten) {
  const std::string settings = gpt() + "--width 256 --layers 2 --steps 2";
  for (const std::string& limit : {std::string("ulimit -f 1"),
                                   std::string("ulimit -f 4096"),
                                   std::string("trap '' XFSZ; ulimit -f 1"),
                                   std::string("trap '' XFSZ; ulimit -f 4096")}) {
    fs::remove_all(path("run"));
    const std::string mark = testing::unique_mark();
    Words shell = command("run", settings);
    shell.insert(shell.begin(), {"bash", "-c", limit + "; exec \"$0\" \"$@\""});
    const Finished finished = run_program(shell, {mark});
    EXPECT_TRUE(finished.code == 1 || finished.code == 3) << limit << ": " << finished.code;
    expect_parts(finished.err, {path("run") + "/", "could not be written", "File too large"});
    // Nothing is left of a run whose settings could not be written.
    EXPECT_EQ(fs::exists(path("run")), limit.ends_with("4096")) << limit;
    for (const auto& entry : fs::recursive_directory_iterator(data_.path())) {
      EXPECT_EQ(entry.path().string().find(".partial"), std::string::npos) << entry.path();
    }
    EXPECT_TRUE(processes_with(mark).empty());
  }
}

// Whether one rank has seen it, or all of them.
TEST_F(TrainFailures, AreToldOnce) {
  fs::create_directories(path("run-1/train.log"));  // rank 0 alone writes there
  const std::string table = data_.write("a.csv", "x,kind\n1,a\nz,b\n");
  const std::vector<std::pair<std::string, std::string>> cases = {
      {mlp() + "-n 3 --steps 1", path("run-1") + "/train.log"},
      {mlp() + "-n 3 --steps 1 --batch 62", "60 samples to train on"},
      {"--model mlp --steps 1 -n 3 --data " + table, "line 3"},
  };
  for (const auto& [settings, part] : cases) {
    const Finished finished = train("run-" + std::to_string(++runs_), settings);
    EXPECT_GE(finished.code, 2) << finished.out;
    const std::size_t first = finished.err.find(part);
    ASSERT_NE(first, std::string::npos) << finished.err;
    EXPECT_EQ(finished.err.find(part, first + 1), std::string::npos) << finished.err;
  }
}

TEST_F(TrainFailures, NameDataThatIsNotThere) {
  const std::string nothing = path("nothing.txt");
  for (const std::string& data :
       {"--data " + nothing, "-n 3 --data " + nothing, "--eval-data " + nothing}) {
    expect_failure(gpt() + "--steps 1 " + data, 2, {nothing, "data: expected a file or folder"});
    EXPECT_FALSE(fs::exists(path("run-" + std::to_string(runs_)))) << "a folder for nothing";
  }
}

TEST_F(TrainFailures, NameTheByteAtWhichDataIsBroken) {
  const std::string empty = data_.write("empty.txt", "");
  expect_failure(gpt() + "--steps 1 -n 2 --data " + empty, 2, {empty, "byte 0"});
  const std::string short_text = data_.write("short.txt", "abc");
  expect_failure(gpt() + "--steps 1 --data " + short_text, 2, {short_text});
  const std::string model = convnet();
  const std::string images = path("train-images-idx3-ubyte");
  const std::string whole = testing::read_file(images);
  data_.write("train-images-idx3-ubyte", whole.substr(0, whole.size() - 1));
  expect_failure(model + "--steps 1 -n 2", 2, {images, "byte"});
  data_.write("train-images-idx3-ubyte", whole.substr(0, 10));
  expect_failure(model + "--steps 1", 2, {images, "byte"});
  data_.write("train-images-idx3-ubyte", big_endian(0x801) + whole.substr(4));
  expect_failure(model + "--steps 1 -n 2", 2, {images, "byte 0"});
  const std::string rows = data_.write("bad.libsvm", "1 1:1\n0 1:x\n");
  expect_failure("--model wide --steps 1 --batch 1 --data " + rows, 2, {rows});
}

// A byte that is no character of UTF-8 is named, and does not get into the way of saying so.
TEST_F(TrainFailures, NameBytesThatAreNoText) {
  std::string rows = "x,kind\n";
  std::string pairs;
  for (int i = 0; i < 100; ++i) {
    const std::string value = i == 70 ? "caf\xe9" : std::to_string(i);
    rows += value + (i % 2 == 0 ? ",a\n" : ",b\n");
    pairs += std::to_string(i % 2) + " 1:" + value + "\n";
  }
  const std::string table = data_.write("rows.csv", rows);
  expect_failure(
      "--model mlp --epochs 3 --batch 12 -n 2 --data " + table, 2, {table, "line 72", "caf\\xe9"});
  const std::string file = data_.write("rows.libsvm", pairs);
  for (const std::string ranks : {"2", "1"}) {
    expect_failure("--model wide --epochs 3 --batch 12 --data " + file + " -n " + ranks,
                   2,
                   {file, "line 71", "caf\\xe9"});
    // Found before training begins, so that there is no run.
    EXPECT_FALSE(std::filesystem::exists(path("run-" + std::to_string(runs_))));
  }
}

TEST_F(TrainFailures, SayThatAModelDoesNotFitItsData) {
  const std::string text = data_.write("some.txt", std::string(3000, 'a'));
  expect_failure(
      "--model convnet --steps 1 -n 2 --data " + text,
      2,
      {"--model: expected gpt or bert for the text", text, "found convnet", "does not take text"});
  expect_failure("--model gpt --regression --steps 1 --data " + text,
                 2,
                 {"--regression: ", "choose another --model"});
  expect_failure("--model wide --steps 1 --data " + text, 2, {"wide", text});
  expect_failure(images(60, 37) + "--steps 1 --model gpt", 2, {"gpt", data_.path()});
  expect_failure(convnet() + "--steps 1 --stages 4,4,4,4,4",
                 2,
                 {"stages (--stages): expected at most 3", "found 5"});
  expect_failure(gpt() + "--steps 1 --width 30 --heads 4", 2, {"heads"});
  expect_failure(mlp() + "--steps 1 --loss-weights 1,2", 2, {"loss_weights", "3"});
  expect_failure(
      mlp() + "--steps 1 --sampling weighted --class-weights 1,2", 2, {"class_weights", "3"});
  for (const std::string how : {"balanced", "weighted --class-weights 1,2"}) {
    expect_failure(
        gpt() + "--steps 1 --sampling " + how,
        2,
        {"sampling (--sampling): expected shuffled or sequential for a text", how.substr(0, 8)});
  }
  // What the engine refuses is told with flags, too.
  const std::string file = data_.write("states", "");
  const std::pair<std::string, std::string> places[] = {{path("none"), "make the folder"},
                                                        {file, "it is a file: name a folder"}};
  for (const auto& [folder, advice] : places) {
    expect_failure(gpt() + "--steps 1 --offload disk:" + folder,
                   2,
                   {"offload (--offload): no file could be made in \"" + folder, advice});
  }
  expect_failure(gpt() + "--steps 1 --best f1", 2, {"best", "f1", "expected loss or accuracy"});
  expect_failure(gpt() + "--steps 1 --goal rmse:1", 2, {"goal", "no rmse", "perplexity"});
  expect_failure(mlp() + "--steps 1 --goal perplexity:2", 2, {"no perplexity", "accuracy or f1"});
  const std::string numbers = "--model mlp --regression --batch 2 -n 1 --steps 1 --data " +
                              data_.write("sums.csv", "a,b\n1,2\n2,4\n3,6\n4,8\n5,9\n") + " ";
  expect_failure(numbers + "--goal accuracy:0.9", 2, {"no accuracy", "loss, rmse or mae"});
  expect_failure(numbers + "--best f1", 2, {"best", "f1", "does not have: expected loss\n"});
  expect_failure(
      gpt() + "--steps 1 --early-stop 2 --eval-fraction 0", 2, {"early_stop", "--eval-fraction"});
  expect_failure(mlp() + "--steps 1 --folds 100", 2, {"folds"});
}

// 60 images; of a text, whole windows of 16 characters and the one that follows them.
TEST_F(TrainFailures, RefuseABatchThatIsLargerThanTheData) {
  train_well("whole", mlp() + "--batch 60 --steps 1");
  expect_failure(
      mlp() + "--batch 62 --steps 1 -n 2",
      2,
      {"batch (--batch): expected", "60 samples to train on", "found 62", "--batch 60 or less"});
  expect_failure(mlp() + "--batch 72 --micro-batch 8 --steps 1",
                 2,
                 {"--batch 56 (a multiple of the micro-batch of 8) or less"});
  expect_failure(
      mlp() + "--batch-schedule 5:62 --steps 1",
      2,
      {"batch_schedule (--batch-schedule): expected", "found 62 from step 5 on", "60 samples"});
  // What a fold leaves, and what is held out.
  train_well("folds", mlp() + "--folds 3 --batch 40 --steps 1");
  expect_failure(
      mlp() + "--folds 3 --batch 42 --steps 1", 2, {"40 samples", "a fold of 3", "found 42"});
  const std::string windows = std::to_string((3000 - 1) / 16);
  expect_failure(gpt() + "--eval-fraction 0 --batch 188 --steps 1",
                 2,
                 {windows + " samples to train on (windows of 16 tokens)", "--sequence"});
  expect_failure(gpt() + "--eval-fraction 0.5 --batch 100 --steps 1", 2, {"found 100"});
  // Drawn by class, a sample may come again at any time.
  train_well("drawn", mlp() + "--sampling balanced --batch 62 --steps 1");
}

TEST_F(TrainFailures, AStoreThatDoesNotAnswerMayDoSoTheNextTime) {
  expect_failure(gpt() + "--elastic 1:2 --nnodes 2 --node-rank 0 -n 1 --timeout 1 " +
                     "--store etcd://127.0.0.1:1/night",
                 4,
                 {"--store: ", "tried for", "Check that etcd runs there"});
}

TEST_F(TrainFailures, RefuseWrongUsage) {
  const std::vector<std::pair<std::string, Words>> cases = {
      {"--stepz 3", {"--stepz", "did you mean --steps?"}},
      {"--lerning-rate 3",
       {"found --lerning-rate; did you mean --lr?", "\"trireme train --help\""}},
      {"--steps three", {"--steps: expected", "\"three\""}},
      {"--steps", {"--steps"}},
      {"--steps 1.5", {"steps", "1.5"}},
      {"--zero 4", {"--zero: expected", "4"}},
      {"-n -2", {"-n: expected", "-2"}},
      {"--optimizer adan", {"optimizer", "did you mean adam"}},
      {"--batch 10 --micro-batch 3", {"--micro-batch: expected", "10"}},
      {"--memory-limit lots", {"--memory-limit: expected", "lots"}},
      {"--flip perhaps", {"--flip: expected", "perhaps"}},
      {"--steps 3 stray", {"stray"}},
      {"--steps 1 --data a.txt b.txt", {"b.txt"}},
      {"--config /no/such.json", {"/no/such.json", "No such file"}},
      {"--config /tmp", {"/tmp", "folder"}},
  };
  for (const auto& [settings, parts] : cases) {
    Words all = parts;
    all.emplace_back("trireme: ");
    expect_failure(settings, 2, all);
    EXPECT_FALSE(fs::exists(path("run-" + std::to_string(runs_))))
        << settings << " has made a folder";
  }
}

TEST_F(TrainFailures, RefuseMoreRanksThanTheMachineHasRoomFor) {
  if (total_memory_bytes() < std::uint64_t{256} << 30) {
    expect_failure(
        gpt() + "-n 4096 --batch 4096 --micro-batch 1",
        2,
        {"-n: 4096 ranks need at least 256 GiB of memory (64 MiB each)", "start at most"});
    EXPECT_FALSE(fs::exists(path("run-1"))) << "a folder for nothing";
  }
}

TEST_F(TrainFailures, RefuseConfigurationsThatAreNone) {
  const std::vector<std::pair<std::string, Words>> cases = {
      {"", {"expected JSON"}},
      {"{\"batch\": 3,}", {"line 1, column 13"}},
      {"[]", {"object"}},
      {R"({"bacth": 3})", {"did you mean \"batch\""}},
      {R"({"zero_optimization": {"offload_param": {"device": "cpu"}}})", {"does not offload"}},
  };
  for (const auto& [text, parts] : cases) {
    const std::string file = data_.write("config.json", text);
    Words all = parts;
    all.push_back(file);
    const Finished finished = train("run", "--config " + file);
    EXPECT_EQ(finished.code, 2) << text;
    expect_parts(finished.err, all);
  }
}

}  // namespace
}  // namespace trireme::train_failures_test
