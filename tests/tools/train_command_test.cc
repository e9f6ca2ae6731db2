// What trireme train leaves behind, and how it is told what to do.

#include <cmath>
#include <filesystem>
#include <map>
#include <numeric>
#include <regex>
#include <set>

#include "tools/train_runs.h"
#include "trireme/checkpoint/safetensors.h"
#include "trireme/settings/settings_table.h"

namespace trireme::train_command_test {
namespace {

namespace fs = std::filesystem;
using testing::expect_parts;
using testing::Finished;
using testing::Json;
using testing::read_file;
using testing::read_json;
using testing::run_program;
using testing::trireme_binary;
using testing::Words;

class TrainCommand : public testing::TrainRuns {
 protected:
  Json metric(const std::string& run, const char* name) const {
    return summary(run).at("metrics").at(name);
  }

  std::size_t files_like(const std::string& run, const std::string& beginning) const {
    std::size_t count = 0;
    for (const auto& entry : fs::directory_iterator(path(run))) {
      count += entry.path().filename().string().starts_with(beginning) ? 1 : 0;
    }
    return count;
  }
};

// --- evaluation

TEST_F(TrainCommand, EvaluatesEachSampleOnceAndCountsRight) {
  // 37 samples in batches of 8 on 3 ranks: nothing divides.
  train_well("run", mlp() + "-n 3 --zero 3 --steps 4 --eval-batch 8");
  const auto rows = testing::read_rows(path("run") + "/evaluation.csv");
  ASSERT_EQ(rows.size(), 37U);
  std::map<int, double> hits;
  std::map<int, double> predicted;
  std::map<int, double> support;
  double loss = 0;
  double right = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    ASSERT_EQ(rows[i].size(), 4U);
    EXPECT_EQ(rows[i][0], static_cast<double>(i));
    EXPECT_EQ(rows[i][1], label_of(static_cast<int>(i)));
    const int target = static_cast<int>(rows[i][1]);
    const int prediction = static_cast<int>(rows[i][2]);
    predicted[prediction] += 1;
    support[target] += 1;
    hits[target] += target == prediction ? 1 : 0;
    right += target == prediction ? 1 : 0;
    loss += rows[i][3];
  }
  double f1 = 0;
  for (const auto& [target, count] : support) {
    f1 += 2 * hits[target] / (predicted[target] + count) / static_cast<double>(support.size());
  }
  EXPECT_DOUBLE_EQ(metric("run", "accuracy").get<double>(), right / 37);
  EXPECT_NEAR(metric("run", "f1").get<double>(), f1, 1e-12);
  EXPECT_NEAR(metric("run", "f1_micro").get<double>(), right / 37, 1e-12);
  EXPECT_NEAR(metric("run", "loss").get<double>(), loss / 37, 1e-12);
  double confused = 0;
  const Json summary = this->summary("run");
  for (const Json& count : summary.at("confusion")) {
    confused += count.get<double>();
  }
  EXPECT_EQ(confused, 37);
}

TEST_F(TrainCommand, EvaluatesEveryTokenOfAGpt) {
  train_well("run", gpt() + "-n 2 --steps 4 --eval-batch 4");
  double tokens = 0;
  double correct = 0;
  double loss = 0;
  for (const auto& row : testing::read_rows(path("run") + "/evaluation.csv")) {
    EXPECT_EQ(row[1], 16);
    tokens += row[1];
    correct += row[2];
    loss += row[1] * row[3];
  }
  ASSERT_GT(tokens, 0);
  EXPECT_DOUBLE_EQ(metric("run", "accuracy").get<double>(), correct / tokens);
  EXPECT_NEAR(metric("run", "loss").get<double>(), loss / tokens, 1e-12);
  EXPECT_NEAR(metric("run", "perplexity").get<double>(), std::exp(loss / tokens), 1e-9);
}

// As many of each sample as are masked: 15 % of 16, which is 2.
TEST_F(TrainCommand, EvaluatesTheMaskedTokensOfABert) {
  std::string text;
  for (int i = 0; i < 4000; ++i) {
    text += "abcdefgh"[i % 8];
  }
  const std::string data = data_.write("pattern.txt", text);
  train_well("run",
             "--model bert --layers 1 --width 32 --heads 2 --sequence 16 --stride 8 --steps 150 "
             "--batch 16 --lr 0.01 --data " +
                 data);
  double tokens = 0;
  double correct = 0;
  double loss = 0;
  for (const auto& row : testing::read_rows(path("run") + "/evaluation.csv")) {
    EXPECT_EQ(row[1], 2);
    tokens += row[1];
    correct += row[2];
    loss += row[1] * row[3];
  }
  ASSERT_GT(tokens, 0);
  EXPECT_DOUBLE_EQ(metric("run", "accuracy").get<double>(), correct / tokens);
  EXPECT_NEAR(metric("run", "loss").get<double>(), loss / tokens, 1e-12);
  EXPECT_NEAR(metric("run", "perplexity").get<double>(), std::exp(loss / tokens), 1e-9);
  // Windows begin where the pattern does, so the position alone tells the token.
  EXPECT_GT(metric("run", "accuracy").get<double>(), 0.9);
  const Finished sampled = run_program({trireme_binary(), "sample", "--run", path("run")});
  EXPECT_EQ(sampled.code, 2);
  expect_parts(sampled.err, {"only a gpt", "found the model bert", "summary.json"});
  const Finished predicted =
      run_program({trireme_binary(), "predict", path("run"), "--data", data});
  EXPECT_EQ(predicted.code, 2);
  expect_parts(predicted.err, {"holds a bert", "fills in what is masked", "--weights-from"});
}

// --- the run folder

TEST_F(TrainCommand, ClassesAreCalledWhatTheDataCallsThem) {
  std::string rows = "x,y,kind\n";
  RandomStream random(4);
  for (int i = 0; i < 90; ++i) {
    rows += std::to_string(random.below(100)) + "," + std::to_string(i % 3) + "," +
            (i % 3 == 0   ? "cat"
             : i % 3 == 1 ? "dog"
                          : "a bird with a long name") +
            "\n";
  }
  const std::string file = data_.write("pets.csv", rows);
  const std::string settings =
      "--model mlp --hidden 8 --epochs 2 --batch 12 -n 2 --data " + file + " --eval-data " + file;
  const Finished finished = train("run", settings);
  ASSERT_EQ(finished.code, 0) << finished.err;
  const Json classes = summary("run").at("classes");
  ASSERT_EQ(classes.size(), 3U);
  EXPECT_EQ(classes.at(0).at("name"), "a bird with a long name");
  EXPECT_EQ(classes.at(1).at("name"), "cat");
  EXPECT_EQ(classes.at(2).at("name"), "dog");
  const std::string log = read_file(path("run") + "/train.log");
  expect_parts(log, {" target  a bird wi...", "  cat", "  dog", "a bird with a long name  "});
  // All shares are percentages.
  const double f1 = metric("run", "f1").get<double>();
  char shown[32];
  std::snprintf(shown, sizeof(shown), ", f1 %.2f %%", 100 * f1);
  expect_parts(finished.out, {shown});
  expect_parts(log, {shown});
  // Images have numbers only.
  train_well("numbers", mlp() + "--steps 2");
  EXPECT_TRUE(std::regex_search(read_file(path("numbers") + "/train.log"),
                                std::regex(" target +0 +1 +2  precision")));
  EXPECT_FALSE(summary("numbers").at("classes").at(0).contains("name"));
}

TEST_F(TrainCommand, SaysWhenTheScheduleEndsBeforeTheRun) {
  const auto says = [&](const char* run, const std::string& settings) {
    const Finished finished = train(run, mlp() + "--steps 3 --warm-up 0 --lr 0.5 " + settings);
    EXPECT_EQ(finished.code, 0) << finished.err;
    return finished.out.find(
               "the schedule ends after 2 of 3 steps (schedule_steps); the others are "
               "taken with a learning rate of 0.125") != std::string::npos;
  };
  EXPECT_TRUE(says("early", "--schedule linear --final-factor 0.25 --schedule-steps 2"));
  EXPECT_FALSE(says("whole", "--schedule linear --final-factor 0.25 --schedule-steps 3"));
  EXPECT_FALSE(says("longer", "--schedule linear --final-factor 0.25 --schedule-steps 30"));
}

TEST_F(TrainCommand, SaysWhichRanksHaveNothingToDo) {
  const auto said = [&](const char* run, const std::string& settings) {
    const Finished finished = train(run, mlp() + "--steps 2 " + settings);
    EXPECT_EQ(finished.code, 0) << finished.err;
    std::string lines;
    std::istringstream in(finished.out);
    for (std::string line; std::getline(in, line);) {
      lines += line.find("nothing to compute") != std::string::npos ? line + "\n" : "";
    }
    return lines;
  };
  EXPECT_EQ(
      said("three", "--micro-batch 6 -n 3"),
      "1 of 3 ranks has nothing to compute: a step of 12 samples is 2 micro-batches of 6; start "
      "no more than 2 ranks (-n), or make micro-batches smaller (--micro-batch 4, which changes "
      "the result)\n");
  expect_parts(
      said("two", "--micro-batch 12 -n 2"),
      {"1 of 2 ranks has", "one micro-batch; start no more than 1 rank (-n)", "--micro-batch 6"});
  EXPECT_EQ(said("work", "--micro-batch 4 -n 3"), "");
  EXPECT_EQ(said("default", "-n 1"), "");
  // As many as there can be, and still too few.
  expect_parts(said("few", "--batch 2 --micro-batch 1 -n 3"),
               {"1 of 3 ranks has", "start no more than 2 ranks (-n)\n"});
}

TEST_F(TrainCommand, LeavesAFolderWhoseFilesAgree) {
  const Words lines =
      train_well("run", mlp() + "-n 2 --zero 2 --steps 6 --eval-every 2 --save-initial --lr 0.05");
  const std::string run = path("run");
  const Json summary = this->summary("run");
  EXPECT_EQ(summary.at("status"), "finished");
  EXPECT_EQ(summary.at("steps"), 6);
  const auto metrics = testing::read_json_lines(run + "/metrics.jsonl");
  std::vector<double> losses;
  Json last_evaluation;
  Json best;
  for (const Json& line : metrics) {
    if (!line.contains("eval")) {
      losses.push_back(line.at("loss").get<double>());
      EXPECT_EQ(line.at("step"), losses.size());
      continue;
    }
    last_evaluation = line.at("eval");
    if (best.is_null() || line["eval"]["loss"] < best["metrics"]["loss"]) {
      best = {{"step", line["step"]}, {"metrics", line["eval"]}};
    }
  }
  EXPECT_EQ(losses.size(), 6U);
  EXPECT_EQ(summary.at("training_loss"), losses.back());
  EXPECT_EQ(summary.at("metrics"), last_evaluation);
  EXPECT_EQ(summary.at("best"), best);
  EXPECT_EQ(read_json(run + "/config.json").at("zero"), 2);
  EXPECT_EQ(files_like("run", "events.out.tfevents."), 1U);
  EXPECT_EQ(files_like("run", "metrics.jsonl.partial"), 0U);
  const SafetensorsFile model(run + "/model.safetensors");
  const SafetensorsFile initial(run + "/initial.safetensors");
  const SafetensorsFile kept(run + "/best.safetensors");
  ASSERT_EQ(model.entries().size(), 4U);  // two layers, each with weights and a bias
  for (std::size_t i = 0; i < model.entries().size(); ++i) {
    EXPECT_EQ(model.entries()[i].name, initial.entries()[i].name);
    EXPECT_EQ(model.entries()[i].shape, kept.entries()[i].shape);
  }
  EXPECT_EQ(model.entries()[0].shape, (std::vector<std::int64_t>{16, 64}));
  EXPECT_NE(read_file(run + "/model.safetensors"), read_file(run + "/initial.safetensors"));
  const bool last_is_best = best["step"] == 6;
  EXPECT_EQ(read_file(run + "/model.safetensors") == read_file(run + "/best.safetensors"),
            last_is_best);
}

// Whose speeds can be compared.
TEST_F(TrainCommand, RunsOfAnyNumberOfRanksAreOnTheSameMachine) {
  train_well("one", mlp() + "-n 1 --steps 2");
  train_well("two", mlp() + "-n 2 --steps 2");
  EXPECT_EQ(summary("one").at("machine"), summary("two").at("machine"));
  const Finished compared = run_program({trireme_binary(), "compare", path("one"), path("two")});
  EXPECT_EQ(compared.out.find("different machine"), std::string::npos) << compared.out;
}

TEST_F(TrainCommand, WritesNoMoreThanItIsAskedTo) {
  train_well("run", mlp() + "--steps 2 --save-weights off --tensorboard false");
  EXPECT_EQ(files_like("run", "events."), 0U);
  EXPECT_FALSE(fs::exists(path("run") + "/model.safetensors"));
  EXPECT_FALSE(fs::exists(path("run") + "/best.safetensors"));
}

TEST_F(TrainCommand, RepeatsARunFromItsConfiguration) {
  // 20 steps, so that a gpt's own warm-up has one.
  const std::string model = gpt() + "--dropout 0.1 --steps 20 -n 2 --zero 1";
  const Words expected = train_well("first", model);
  EXPECT_EQ(train_well("second", "--config " + path("first") + "/config.json"), expected);
  Json first = read_json(path("first") + "/config.json");
  Json second = read_json(path("second") + "/config.json");
  first.erase("run");
  second.erase("run");
  EXPECT_EQ(first, second);
}

TEST_F(TrainCommand, RefusesAFolderThatHoldsARunAndLeavesItAsItIs) {
  const auto contents = [&] {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(path("run"))) {
      files[entry.path().string()] =
          entry.is_regular_file() ? read_file(entry.path().string()) : "";
    }
    return files;
  };
  for (const auto& [settings, why] :
       {std::pair(mlp() + "--steps 2", "already holds a run"),
        std::pair(mlp() + "--steps 2 --folds 2", "are trained with other settings")}) {
    train_well("run", settings);
    const auto before = contents();
    const Finished again = train("run", settings + " --lr 0.5");
    EXPECT_EQ(again.code, 2);
    expect_parts(again.err, {path("run"), why});
    EXPECT_TRUE(contents() == before) << "something in the folder has changed";
    fs::remove_all(path("run"));
  }
}

TEST_F(TrainCommand, NamesAFolderThatCannotBeMade) {
  data_.write("file", "");
  for (const std::string& folder :
       {std::string("/proc/nothing/here"), path("file"), path("file") + "/below"}) {
    Words command = testing::words(mlp() + "--steps 1 --run " + folder);
    command.insert(command.begin(), {trireme_binary(), "train"});
    const Finished finished = run_program(command);
    EXPECT_EQ(finished.code, 2);
    expect_parts(finished.err, {"\"" + folder + "\""});
  }
}

TEST_F(TrainCommand, MakesADatedFolderWhereNoneIsNamed) {
  Words command = testing::words(mlp() + "--steps 1");
  command.insert(
      command.begin(),
      {"/bin/sh", "-c", "cd \"$0\" && exec \"$@\"", data_.path(), trireme_binary(), "train"});
  EXPECT_EQ(run_program(command).code, 0);
  EXPECT_EQ(run_program(command).code, 0);
  std::size_t runs = 0;
  for (const auto& entry : fs::directory_iterator(path("runs"))) {
    runs += fs::exists(entry.path() / "summary.json") ? 1 : 0;
  }
  EXPECT_EQ(runs, 2U);
}

// --- settings

TEST_F(TrainCommand, ShowsTheSettingsInForce) {
  const std::string file =
      data_.write("config.json", R"({"batch": 24, "lr": 0.25, "zero": 1, "hidden": [5]})");
  const Finished shown = run_program({trireme_binary(),
                                      "train",
                                      "--config",
                                      file,
                                      "--print-config",
                                      "--model",
                                      "mlp",
                                      "--lr",
                                      "0.5",
                                      "-n",
                                      "2",
                                      "--flip",
                                      "--seed=8"});
  ASSERT_EQ(shown.code, 0) << shown.err;
  const Json config = testing::parse_json(shown.out);
  EXPECT_EQ(config.at("lr"), 0.5) << "flag over file";
  EXPECT_EQ(config.at("batch"), 24) << "file over default";
  EXPECT_EQ(config.at("zero"), 1);
  EXPECT_EQ(config.at("beta1"), TrainSettings{}.beta1) << "default";
  EXPECT_EQ(config.at("micro_batch"), "12") << "24 samples on 2 ranks";
  EXPECT_EQ(config.at("flip"), true);
  EXPECT_EQ(config.at("seed"), 8);
  TrainSettings expected;
  apply_json(expected, read_file(file), file);
  expected.model = "mlp";
  expected.lr = 0.5;
  expected.ranks = 2;
  expected.flip = true;
  expected.seed = 8;
  expected.device = TrainDevice::kCpu;  // where no GPU can be used
  const Json all = testing::parse_json(to_json(resolve(expected)));
  for (const auto& [name, value] : config.items()) {
    EXPECT_EQ(value, all.at(name)) << name;
  }
  // What adamw, an mlp and a run without checkpoints do not use.
  for (const char* unused : {"momentum", "nesterov", "layers", "sequence", "keep_last"}) {
    EXPECT_FALSE(config.contains(unused)) << unused;
  }
}

// The kernel takes 128 KiB in one variable of the environment.
TEST_F(TrainCommand, SettingsOfAnyLengthReachTheRanks) {
  Json config;
  for (int i = 0; i < 30'000; ++i) {
    config["batch_schedule"].push_back(std::to_string(1000 + i) + ":12");
  }
  const std::string file = data_.write("long.json", config.dump());
  ASSERT_GT(config.dump().size(), 2U * 128 * 1024);
  train_well("run", mlp() + "-n 2 --steps 2 --config " + file);
  EXPECT_EQ(read_json(path("run") + "/config.json").at("batch_schedule").size(), 30'000U);
}

TEST_F(TrainCommand, TakesEverySettingAsAFlagAndShowsItInHelp) {
  const Finished help = run_program({trireme_binary(), "train", "--help"});
  EXPECT_EQ(help.code, 0);
  for (const Setting& setting : settings_table()) {
    expect_parts(help.out, {"\n  " + setting.flag() + " <"});
    const std::string wrong = setting.flag() + "x";
    const Finished finished = run_program({trireme_binary(), "train", wrong, "1"});
    EXPECT_EQ(finished.code, 2);
    expect_parts(finished.err, {wrong});
  }
}

TEST_F(TrainCommand, IsDocumentedAsItIs) {
  const Finished page = run_program({trireme_binary(), "train", "--settings-page"});
  ASSERT_EQ(page.code, 0);
  EXPECT_EQ(page.out, settings_page());
  const std::string file = std::string(TRIREME_SOURCE) + "/docs/train.md";
  EXPECT_NE(read_file(file).find(page.out), std::string::npos)
      << file << " is to hold what \"trireme train --settings-page\" prints";
}

// --- stopping early, cross-validation

TEST_F(TrainCommand, StopsWhenNothingImproves) {
  train_well("run", mlp() + "--steps 50 --lr 1e-30 --weight-decay 0 --eval-every 2 --early-stop 3");
  const Json summary = this->summary("run");
  // The first evaluation is the best, three more are not better.
  EXPECT_EQ(summary.at("steps"), 2 * (1 + 3));
  EXPECT_EQ(summary.at("stopped_early"), true);
  EXPECT_EQ(summary.at("status"), "finished");
  EXPECT_EQ(summary.at("best").at("step"), 2);
}

TEST_F(TrainCommand, ValidatesWithEveryFoldOnce) {
  const Finished finished = train("run", mlp() + "--steps 3 --folds 4 -n 2 --zero 1");
  EXPECT_EQ(finished.out.find("to evaluate"), std::string::npos)
      << "MNIST's test files have no part";
  ASSERT_EQ(finished.code, 0) << finished.err;
  const Json summary = this->summary("run");
  ASSERT_EQ(summary.at("folds").size(), 4U);
  std::map<std::string, double> sums;
  std::size_t evaluated = 0;
  for (int fold = 1; fold <= 4; ++fold) {
    const std::string folder = "run/fold-" + std::to_string(fold);
    const Json of_fold = this->summary(folder);
    EXPECT_EQ(of_fold.at("status"), "finished");
    EXPECT_EQ(of_fold.at("metrics"), summary["folds"][static_cast<std::size_t>(fold - 1)]);
    for (const auto& [name, value] : of_fold.at("metrics").items()) {
      sums[name] += value.get<double>();
    }
    EXPECT_EQ(testing::history(path(folder)).size(), 3U + 1);
    evaluated += testing::read_rows(path(folder) + "/evaluation.csv").size();
  }
  EXPECT_FALSE(fs::exists(path("run") + "/fold-5"));
  EXPECT_EQ(evaluated, 60U) << "each sample in one fold";
  EXPECT_EQ(sums.count("loss"), 1U);
  for (const auto& [name, sum] : sums) {
    EXPECT_NEAR(summary.at("metrics").at(name).get<double>(), sum / 4, 1e-12) << name;
  }
}

// --- numbers to predict

// The numbers 0 to 29 have the mean 29/2 and the variance (30^2 - 1)/12.
TEST_F(TrainCommand, SaysWhatToDoAboutTargetsOfAnotherScale) {
  const auto told = [&](const std::string& run, double factor) {
    std::string rows = "x,price\n";
    for (int i = 0; i < 30; ++i) {
      rows += std::to_string(i % 7) + "," + std::to_string(factor * i) + "\n";
    }
    const Finished finished =
        train(run,
              "--model mlp --hidden 4 --steps 2 --batch 6 -n 1 --regression --eval-fraction 0 "
              "--data " +
                  data_.write(run + ".csv", rows));
    EXPECT_EQ(finished.code, 0) << finished.err;
    return finished.out + finished.err;
  };
  expect_parts(told("large", 1000),
               {"targets: expected a mean near 0",
                "found 14500 and 8655.44",
                "the column \"price\"",
                "or raise --lr"});
  const std::string small = told("small", 1e-3);
  expect_parts(small, {"found 0.0145 and 0.00865544", "divide by the standard deviation"});
  EXPECT_EQ(small.find("raise --lr"), std::string::npos) << small;
  const std::string usual = told("usual", 0.125);
  EXPECT_EQ(usual.find("targets:"), std::string::npos) << usual;
}

TEST_F(TrainCommand, PredictsNumbersOfSparseRows) {
  std::string text;
  for (int row = 0; row < 120; ++row) {
    const int feature = 1 + row % 7;
    text += std::to_string(feature * 2.5 + row % 3) + " " + std::to_string(feature) + ":1 " +
            std::to_string(8 + row % 3) + ":1\n";
  }
  const std::string rows = data_.write("numbers.libsvm", text);
  train_well(
      "run",
      "--model wide --regression --epochs 40 --batch 12 --optimizer sgd --lr 0.05 -n 2 --data " +
          rows);
  EXPECT_FALSE(summary("run").at("metrics").contains("accuracy"));
  // The targets are a sum of what the features say: their variance is 25, and none of it is left.
  EXPECT_LT(metric("run", "loss").get<double>(), 1);
  double absolute = 0;
  double squares = 0;
  const auto evaluated = testing::read_rows(path("run") + "/evaluation.csv");
  for (const auto& row : evaluated) {
    EXPECT_NEAR(row[3], (row[1] - row[2]) * (row[1] - row[2]), 1e-4);
    absolute += std::fabs(row[1] - row[2]);
    squares += (row[1] - row[2]) * (row[1] - row[2]);
  }
  const auto count = static_cast<double>(evaluated.size());
  EXPECT_NEAR(metric("run", "mae").get<double>(), absolute / count, 1e-9);
  EXPECT_NEAR(metric("run", "rmse").get<double>(), std::sqrt(squares / count), 1e-9);
}

TEST_F(TrainCommand, SaysWhatItsClassesAreCalled) {
  std::string rows = "x,kind\n";
  for (int i = 0; i < 60; ++i) {
    rows += std::to_string(i % 3) + "," +
            (i % 3 == 0   ? "red"
             : i % 3 == 1 ? "blue"
                          : "\"gr\"\"een\"") +
            "\n";
  }
  const std::string file = data_.write("colours.csv", rows);
  const std::string settings =
      "--model mlp --hidden 4 --steps 2 --batch 12 -n 2 --normalise standard --data ";
  train_well("run", settings + file);
  EXPECT_EQ(read_json(path("run") + "/classes.json"), Json({"blue", "gr\"een", "red"}));
  train_well("folds", settings + file + " --folds 2");
  EXPECT_EQ(read_json(path("folds") + "/fold-2/classes.json"), Json({"blue", "gr\"een", "red"}));
  train_well("sparse", wide() + "--steps 1");
  EXPECT_EQ(read_json(path("sparse") + "/classes.json"), Json({"0", "1"}));
  train_well("images", mlp() + "--steps 1");
  EXPECT_FALSE(fs::exists(path("images") + "/classes.json"));
}

// --- which samples

TEST_F(TrainCommand, TextsOfOneSizeAreNotTheSame) {
  const std::string settings = gpt() + "--steps 2 ";
  const std::string text = testing::read_file(path("text.txt"));
  const std::string one = data_.write("one.txt", text.substr(0, 500));
  const std::string other = data_.write("other.txt", text.substr(1000, 500));
  train_well("a", settings + "--eval-data " + one);
  train_well("b", settings + "--lr 1e-2 --eval-data " + one);
  train_well("c", settings + "--eval-data " + other);
  const auto basis = [&](const std::string& x, const std::string& y) {
    const Finished finished = run_program(
        {trireme_binary(), "compare", path(x), path(y), "--json", path("compared.json")});
    EXPECT_EQ(finished.code, 0) << finished.err;
    return read_json(path("compared.json")).value("basis", "");
  };
  EXPECT_EQ(basis("a", "b"), "samples");
  EXPECT_EQ(basis("a", "c"), "nothing");
}

// --- memory

TEST_F(TrainCommand, GoesOnWithSmallerMicroBatchesWhereMemoryEnds) {
  const std::string model = mlp() + "--steps 3 --batch 48 --hidden 256 ";
  train_well("free", model + "--micro-batch 48");
  const auto needed = summary("free").at("memory").at("tensor_bytes").get<std::int64_t>();
  const std::string limit = " --memory-limit " + std::to_string(needed * 6 / 10);
  const Words history = train_well("limited", model + "--micro-batch 48" + limit);
  const auto size = summary("limited").at("micro_batch").get<int>();
  EXPECT_LT(size, 48);
  EXPECT_EQ(48 % size, 0);
  EXPECT_LE(summary("limited").at("memory").at("tensor_bytes").get<std::int64_t>(),
            needed * 6 / 10);
  EXPECT_EQ(train_well("smaller", model + "--micro-batch " + std::to_string(size)), history)
      << "as if they had been small from the start";
}

TEST_F(TrainCommand, SaysWhatToDoWhenNotEvenOneSampleFits) {
  for (const char* micro_batch : {"4", "auto"}) {
    const Finished finished =
        train(std::string("run-") + micro_batch,
              mlp() + "-n 2 --steps 3 --memory-limit 600 --micro-batch " + micro_batch);
    EXPECT_EQ(finished.code, 2);  // it would be the same again
    // What is divided among ranks is not what a limit is full of.
    expect_parts(finished.err,
                 {"not even one sample fits",
                  "memory_limit",
                  "use a higher --memory-limit, --recompute or"});
    // As it advises, in the same folder.
    train_well(std::string("run-") + micro_batch,
               mlp() + "-n 2 --steps 3 --memory-limit 100MB --micro-batch " + micro_batch);
  }
}

// The last evaluation, of 37 images of 64 numbers at once, beside steps of 2 images.
TEST_F(TrainCommand, MemoryIsThatOfTheLastEvaluationToo) {
  const std::string model = mlp() + "--hidden 512 --steps 2 ";
  const auto bytes = [&](const std::string& run) {
    return summary(run).at("memory").at("tensor_bytes").get<std::int64_t>();
  };
  train_well("last", model);
  EXPECT_GE(bytes("last"), 37 * (64 + 512) * 4);
  train_well("each", model + "--eval-every 1");
  EXPECT_EQ(bytes("each"), bytes("last"));
}

TEST_F(TrainCommand, ThroughputIsTheSameInTheSummaryAndInAComparison) {
  const std::string run = mlp() + "--steps 400 --save-every 150 ";
  train_well("a", run);
  train_well("b", run + "--folds 2 --steps 30 --save-every 0");
  const Finished finished = run_program(
      {trireme_binary(), "compare", path("a"), path("b"), "--json", path("compared.json")});
  ASSERT_EQ(finished.code, 0) << finished.err;
  for (const char* name : {"a", "b"}) {
    const double shown = summary(name).at("throughput").at("per_second").get<double>();
    const double compared =
        read_json(path("compared.json")).at(name).at("throughput").at("per_second").get<double>();
    EXPECT_NEAR(compared / shown, 1, 1e-9) << name;
  }
  EXPECT_EQ(summary("a").at("throughput").at("untimed_steps"), 40);
}

TEST_F(TrainCommand, SaysWhatARunIsTooShortFor) {
  const Finished finished = train(
      "run", mlp() + "-n 2 --steps 3 --warm-up 10 --batch-schedule 2:24,3:48,9:24 --sync local");
  EXPECT_EQ(finished.code, 0) << finished.err;
  expect_parts(
      finished.out,
      {"warning: warm_up is 10, but the run has 3 steps: the learning rate does not reach",
       "warning: batch_schedule: 3:48 and what follows it is never reached",
       "warning: the first averaging comes after step 32, but the run has 3 steps: its replicas "
       "are never averaged"});
  const Finished enough =
      train("enough", mlp() + "-n 2 --steps 3 --sync local --sync-every 3 --eps 0");
  expect_parts(enough.out, {"warning: eps is 0"});
  EXPECT_EQ(enough.out.find("the run has"), std::string::npos) << enough.out;
}

TEST_F(TrainCommand, SaysThatNothingIsEvaluated) {
  std::string text = "x,y\n";
  for (int i = 0; i < 60; ++i) {
    text += std::to_string(i) + (i % 2 == 0 ? ",a\n" : ",b\n");
  }
  const std::string settings =
      "--model mlp --hidden 4 --batch 8 -n 1 --steps 2 --data " + data_.write("a.csv", text) + " ";
  const Finished none = train("none", settings + "--eval-fraction 0 --goal accuracy:0.9 --best f1");
  EXPECT_EQ(none.code, 0) << none.err;
  expect_parts(none.out, {"nothing to evaluate on, so that best and goal have no effect"});
}

TEST_F(TrainCommand, ManyFoldsTakeALineEach) {
  const Finished finished = train("run", mlp() + "--steps 2 --log-every 1 --folds 12");
  EXPECT_EQ(finished.code, 0) << finished.err;
  expect_parts(finished.out, {"fold 1 of 12\nstep 1/2", "fold 12 of 12: loss ", "folds from "});
  EXPECT_EQ(finished.out.find("fold 2 of 12\n"), std::string::npos) << finished.out;
  EXPECT_EQ(std::count(finished.out.begin(), finished.out.end(), '\n') < 12 + 20, true)
      << finished.out;
}

// Which rank has met them is nobody's business.
TEST_F(TrainCommand, MistakesInDataAreToldOnceAndNotOfRanks) {
  std::string tokens;
  for (int i = 0; i < 4000; ++i) {
    tokens += {static_cast<char>(i < 3000 ? i % 10 : 200), '\0'};
  }
  const std::string file = data_.write("tokens.u16", tokens);
  const Finished finished = train("run", gpt() + "-n 2 --steps 200 --vocabulary 20 --data " + file);
  EXPECT_EQ(finished.code, 2) << finished.out << finished.err;
  EXPECT_TRUE(finished.err.starts_with("trireme: " + file)) << finished.err;
  EXPECT_EQ(finished.err.find("rank"), std::string::npos) << finished.err;
  EXPECT_EQ(finished.err.find("expected a token"), finished.err.rfind("expected a token"));
}

// What a later part of the run was given is not asked for by whoever goes back to a step before it.
TEST_F(TrainCommand, AStepThatIsNamedComesWithItsSettings) {
  train_well("run", mlp() + "--steps 4 --save-every 2");
  train_well("run", mlp() + "--steps 6 --lr 0.5 --save-every 2 --allow-changes");
  const Finished back =
      run_program({trireme_binary(), "train", "--run", path("run"), "--resume", "2"});
  EXPECT_EQ(back.code, 0) << back.out << back.err;
  EXPECT_EQ(summary("run").at("steps"), 4);
  const Finished typed = run_program(
      {trireme_binary(), "train", "--run", path("run"), "--resume", "2", "--lr", "0.25"});
  EXPECT_EQ(typed.code, 2) << typed.out;
  expect_parts(typed.err, {"lr: 0.001 in the checkpoint, 0.25 now"});
  EXPECT_EQ(typed.err.find("steps: "), std::string::npos) << typed.err;
}

TEST_F(TrainCommand, FindsTheLargestMicroBatchThatFits) {
  // A batch whose activations are much larger than the weights.
  const std::string model =
      "--model mlp --hidden 16 " + images(240, 37) + "--steps 1 --batch 240 --micro-batch auto ";
  train_well("free", model);
  EXPECT_EQ(summary("free").at("micro_batch"), 240) << "all of the batch";
  const auto needed = summary("free").at("memory").at("tensor_bytes").get<std::int64_t>();
  int before = 240;
  for (const int percent : {60, 30}) {
    const std::string run = std::to_string(percent);
    train_well(run, model + "--memory-limit " + std::to_string(needed * percent / 100));
    const int size = summary(run).at("micro_batch").get<int>();
    EXPECT_EQ(240 % size, 0);
    EXPECT_LT(size, before) << percent << " % of the memory";
    before = size;
  }
  train_well("two", model + "-n 2 --memory-limit " + std::to_string(needed * 30 / 100));
  EXPECT_EQ(summary("two").at("micro_batch"), before) << "two ranks, each with as much";
}

// --- sample

TEST_F(TrainCommand, SamplesTextFromARun) {
  train_well("run", gpt() + "--steps 4 -n 2 --zero 3");
  const auto sample = [&](const Words& more) {
    Words command = {trireme_binary(), "sample", "--run", path("run"), "--prompt", "abc "};
    command.insert(command.end(), more.begin(), more.end());
    const Finished finished = run_program(command);
    EXPECT_EQ(finished.code, 0) << finished.err;
    return finished.out;
  };
  const std::string text = sample({"--length", "40"});
  EXPECT_EQ(text.size(), 4U + 40 + 1) << "the prompt, 40 bytes, the end of the line";
  EXPECT_EQ(text.substr(0, 4), "abc ");
  EXPECT_NE(sample({"--length", "40", "--seed", "2"}), text);
  EXPECT_EQ(sample({"--length", "5"}), text.substr(0, 9) + "\n");
  EXPECT_EQ(sample({"--length", "5", "--weights", "best", "--temperature", "0"}).size(), 10U);
  const std::string likely = sample({"--length", "20", "--temperature", "0"});
  for (const std::string nearly : {"1e-30", "1e-38", "1e-40", "1e-45", "1e-100"}) {
    EXPECT_EQ(sample({"--length", "20", "--temperature", nearly}), likely) << nearly;
  }
  // A prompt may look like anything.
  for (const std::string prompt : {"--", "-", "--- a", "-n", "train", "", "--prompt=x"}) {
    const Finished finished =
        run_program({trireme_binary(), "sample", path("run"), "--length", "5", "--prompt", prompt});
    EXPECT_EQ(finished.code, 0) << prompt << ": " << finished.err;
    EXPECT_EQ(finished.out.substr(0, prompt.size()), prompt);
    EXPECT_EQ(finished.out.size(), prompt.size() + 6);
  }
  for (const std::string temperature : {"nan", "NaN", "-nan", "inf", "-1", "101", "warm"}) {
    const Finished finished = run_program(
        {trireme_binary(), "sample", "--run", path("run"), "--temperature=" + temperature});
    EXPECT_EQ(finished.code, 2) << temperature;
    expect_parts(finished.err, {"--temperature"});
    EXPECT_EQ(finished.err.find("Exception raised"), std::string::npos) << finished.err;
  }
}

// With the very weights: what is said is the same.
TEST_F(TrainCommand, SamplesFromACheckpoint) {
  train_well("run", gpt() + "--steps 4 --save-every 2 -n 2 --zero 3");
  const auto sample = [&](const Words& more) {
    Words command = {trireme_binary(), "sample", "--run", path("run"), "--length", "40"};
    command.insert(command.end(), more.begin(), more.end());
    return run_program(command);
  };
  const std::string text = sample({}).out;
  EXPECT_EQ(text.size(), 41U);
  EXPECT_EQ(sample({"--weights", "checkpoint"}).out, text);
  fs::remove(path("run") + "/model.safetensors");
  const Finished unsaved_model = sample({});
  EXPECT_EQ(unsaved_model.out, text);
  expect_parts(unsaved_model.err, {"the run has no model.safetensors", "step-00000004"});
  EXPECT_EQ(unsaved_model.err.find("not finished"), std::string::npos) << unsaved_model.err;
  fs::remove(path("run") + "/summary.json");
  expect_parts(sample({}).err, {"has not finished", "step-00000004"});
  fs::resize_file(path("run") + "/best.safetensors", 100);
  const Finished cut = sample({"--weights", "best"});
  EXPECT_EQ(cut.code, 2);
  expect_parts(cut.err, {"best.safetensors"});
  const Finished none = sample({"--weights", "model"});
  EXPECT_EQ(none.code, 2);
  expect_parts(none.err, {"model.safetensors", "--weights checkpoint"});
  fs::remove_all(path("run") + "/checkpoints");
  const Finished unsaved = sample({"--weights", "checkpoint"});
  EXPECT_EQ(unsaved.code, 2);
  expect_parts(unsaved.err, {"found none", "has saved no checkpoint", "--save-every"});
  const Finished gone = sample({});
  EXPECT_EQ(gone.code, 2);
  expect_parts(gone.err, {"trireme train --config " + path("run") + "/config.json --run NEW"});
}

TEST_F(TrainCommand, SamplesNothingFromWhatIsNoGpt) {
  train_well("run", mlp() + "--steps 1");
  const std::vector<std::pair<Words, std::string>> cases = {
      {{"--run", path("run")}, "only a gpt can generate text"},
      {{"--run", path("nowhere")}, path("nowhere")},
      {{}, "RUN: expected the folder of the run, found none"},
      {{"--run", path("run"), "--length", "0"},
       "--length: expected a number from 1 to 1073741824, found \"0\""},
      {{"--run", path("run"), "--temperature", "101"},
       "--temperature: expected a number from 0 to 100, found \"101\""},
      {{"--run", path("run"), "--bogus"}, "--bogus"},
      {{"--run", path("run"), "--seed", "x"}, "--seed: expected a number, found \"x\""},
      {{"--run", path("run"), "--seed"}, "--seed: expected a value, found none"},
      {{"--run", path("run"), "--weights", "bset"},
       "--weights: expected one of auto, model, best, average, checkpoint, found \"bset\"; did you "
       "mean best?"},
      {{"--run", path("run"), "--prompt", "--length", "5"}, "--prompt"},
  };
  for (const auto& [arguments, part] : cases) {
    Words command = {trireme_binary(), "sample"};
    command.insert(command.end(), arguments.begin(), arguments.end());
    const Finished finished = run_program(command);
    EXPECT_EQ(finished.code, 2) << finished.out;
    expect_parts(finished.err, {part});
  }
}

TEST_F(TrainCommand, CountsTheStepsOfEpochs) {
  // Updates become larger on the way; counted one by one.
  const auto expected = [](double epochs, const std::vector<std::int64_t>& batches) {
    constexpr std::size_t kUntil = 3;  // steps that have one batch each
    double taken = 0;
    int steps = 0;
    for (; taken < epochs * 60; ++steps) {
      taken += static_cast<double>(batches[static_cast<std::size_t>(steps) / kUntil < batches.size()
                                               ? static_cast<std::size_t>(steps) / kUntil
                                               : batches.size() - 1]);
    }
    return steps;
  };
  int run = 0;
  for (const double epochs : {0.1, 1.0, 1.7, 2.5, 4.0}) {
    const std::string name = "run-" + std::to_string(++run);
    train_well(
        name,
        mlp() + "--batch-schedule 3:24,6:6 --eval-every 1000 --epochs " + std::to_string(epochs));
    EXPECT_EQ(summary(name).at("steps"), expected(epochs, {12, 24, 6})) << epochs;
  }
  const Finished endless = train("endless", mlp() + "--epochs 1e18");
  EXPECT_EQ(endless.code, 2);
  expect_parts(endless.err, {"epochs"});
}

}  // namespace
}  // namespace trireme::train_command_test
