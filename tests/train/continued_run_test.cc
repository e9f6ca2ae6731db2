// What a run that goes on takes up: where the training is, the lines of its files, its best
// weights.

#include "train/continued_run.h"

#include <cmath>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "support/processes.h"
#include "support/ranks.h"
#include "train/train_progress.h"
#include "trireme/checkpoint/checkpoint_folder.h"
#include "trireme/core/error.h"
#include "trireme/train/run_recorder.h"

namespace trireme::continued_run_test {
namespace {

namespace fs = std::filesystem;
using detail::TrainProgress;
using testing::message_of;
using testing::TemporaryFolder;

void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in: " << text;
  }
}

TEST(TrainProgress, ComesBackToTheLastBit) {
  TrainProgress progress;
  progress.step = 9007199254740993;  // 2^53 + 1, which is no double
  progress.position = 12;
  progress.micro_batch = 7;
  progress.evaluation = {{"loss", std::nan("")}, {"accuracy", 0.1 + 0.2}, {"f1", -INFINITY}};
  progress.best = {{"loss", INFINITY}};
  progress.plateau = {.factor = 1.0 / 3, .best = 5e-324, .bad = 4, .seen = true};
  progress.loss = -0.0;
  progress.seconds = 1e300;
  const std::string text = progress.to_json();
  const TrainProgress read = TrainProgress::parse(text, "a");
  EXPECT_EQ(read.to_json(), text);
  EXPECT_EQ(read.step, progress.step);
  EXPECT_EQ(read.position, 12);
  EXPECT_TRUE(std::isnan(read.evaluation.at("loss")));
  EXPECT_EQ(read.evaluation.at("accuracy"), 0.1 + 0.2);
  EXPECT_EQ(read.evaluation.at("f1"), -INFINITY);
  EXPECT_EQ(read.best.at("loss"), INFINITY);
  EXPECT_EQ(read.plateau.factor, 1.0 / 3);
  EXPECT_EQ(read.plateau.best, 5e-324);
  EXPECT_EQ(read.plateau.bad, 4);
  EXPECT_TRUE(read.plateau.seen);
  EXPECT_TRUE(std::signbit(read.loss));
  EXPECT_EQ(read.seconds, 1e300);
}

TEST(TrainProgress, RefusesWhatIsNone) {
  for (const char* text : {"", "[]", "{}", R"({"step": "one"})", "{\"step\": 1"}) {
    const std::string message =
        message_of<CheckpointError>([&] { TrainProgress::parse(text, "the/manifest.json"); });
    expect_parts(message, {"the/manifest.json", "\"train\"", "expected"});
  }
  // Numbers that no training has.
  const std::string good = TrainProgress{}.to_json();
  const auto with = [&](const std::string& name, const std::string& value) {
    auto json = nlohmann::json::parse(good);
    json[name] = nlohmann::json::parse(value);
    return json.dump();
  };
  EXPECT_NO_THROW(TrainProgress::parse(with("position", "7"), "a"));
  for (const auto& [name, value] : std::vector<std::pair<std::string, std::string>>{
           {"step", "-1"}, {"position", "9223372036854775807"}, {"plateau_bad", "99999999999"}}) {
    expect_parts(message_of<CheckpointError>([&] { TrainProgress::parse(with(name, value), "a"); }),
                 {name, value});
  }
  // Printing it would need a stack as deep as the text.
  const std::string deep = std::string(200'000, '[') + std::string(200'000, ']');
  for (const std::string& text : {deep, "{\"step\": " + deep + "}"}) {
    expect_parts(message_of<CheckpointError>([&] { TrainProgress::parse(text, "a"); }),
                 {"expected a JSON object"});
  }
}

class KeptLines : public ::testing::Test {
 protected:
  std::string file(const std::string& text) const {
    std::ofstream(folder_.path() + "/lines") << text;
    return folder_.path() + "/lines";
  }
  TemporaryFolder folder_;
};

TEST_F(KeptLines, EndWithTheStep) {
  const std::string one = "{\"step\":1,\"loss\":2}\n";
  const std::string eval = "{\"step\":1,\"eval\":{\"loss\":2}}\n";
  const std::string two = "{\"step\":2,\"loss\":2}\n";
  const std::string eval_two = "{\"step\":2,\"eval\":{\"loss\":2}}\n";
  const std::string three = "{\"step\":3,\"loss\":2}\n";
  const auto kept = [&](const std::string& text, std::int64_t step, bool evaluated) {
    const detail::KeptLines lines = detail::kept_metrics(file(text), step, evaluated);
    return std::pair(text.substr(0, lines.bytes), lines.steps);
  };
  const std::string all = one + eval + two + eval_two + three;
  using Kept = std::pair<std::string, std::int64_t>;
  EXPECT_EQ(kept(all, 3, false), Kept(all, 3));
  EXPECT_EQ(kept(all, 2, true), Kept(one + eval + two + eval_two, 2));
  EXPECT_EQ(kept(all, 2, false), Kept(one + eval + two, 2)) << "it is evaluated again";
  EXPECT_EQ(kept(all, 1, false), Kept(one, 1));
  EXPECT_EQ(kept(all, 0, true), Kept("", 0));
  EXPECT_EQ(kept(one + two.substr(0, 9), 2, true), Kept(one, 1)) << "half a line";
  EXPECT_EQ(kept(one + two.substr(0, two.size() - 1), 2, true), Kept(one, 1)) << "no end";
  EXPECT_EQ(kept(one + "nothing\n", 2, true), Kept(one, 1)) << "no line";
  EXPECT_EQ(kept(one + "nothing\n" + two, 2, true), Kept(one + "nothing\n" + two, 2))
      << "what follows a damaged line is not lost";
  EXPECT_EQ(detail::kept_metrics(file(one + "nothing\n" + two), 2, true).damaged, 2);
  EXPECT_EQ(detail::kept_metrics(file(one + two), 2, true).damaged, 0);
  EXPECT_EQ(kept("", 2, true), Kept("", 0));
  EXPECT_EQ(detail::kept_metrics(folder_.path() + "/none", 2, true).bytes, 0U);
}

TEST_F(KeptLines, AreOneForEachStepOfSamples) {
  const std::string path = file("[1]\n[2,3]\n[4]\n[5");
  EXPECT_EQ(detail::kept_samples(path, 2).bytes, 10U);
  EXPECT_EQ(detail::kept_samples(path, 2).steps, 2);
  EXPECT_EQ(detail::kept_samples(path, 0).bytes, 0U);
  EXPECT_EQ(detail::kept_samples(path, 9).bytes, 14U);
  EXPECT_EQ(detail::kept_samples(path, 9).steps, 3);
  EXPECT_EQ(detail::kept_log(path), 14U);
}

class Recording : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name)) << text;
  }
  // A part of a run that resumes after `step`, and records one more.
  void record_after(std::int64_t step) const {
    TrainSettings settings;
    settings.record_samples = true;
    RunRecorder recorder(folder_.path(), settings, nullptr);
    TrainBeginning beginning;
    beginning.step = step;
    beginning.checkpoint = step > 0 ? "checkpoints/some" : "";
    recorder.message("begins");
    recorder.begins(beginning);
    recorder.samples({step, 7});
    recorder.step({.step = step + 1, .steps = step + 1, .seconds = 1, .samples = 2});
    recorder.finish({});
  }
  TemporaryFolder folder_;
};

// Line N is of step N, also where a part of the run did not record.
TEST_F(Recording, StepsWithoutSamplesAreNull) {
  record_after(3);
  EXPECT_EQ(testing::read_file(path("samples.jsonl")), "null\nnull\nnull\n[3,7]\n");
  record_after(6);
  EXPECT_EQ(testing::read_file(path("samples.jsonl")),
            "null\nnull\nnull\n[3,7]\nnull\nnull\n[6,7]\n");
  record_after(4);
  EXPECT_EQ(testing::read_file(path("samples.jsonl")), "null\nnull\nnull\n[3,7]\n[4,7]\n");
  expect_parts(testing::read_file(path("train.log")), {"begins", "samples.jsonl ends with step 4"});
}

TEST_F(Recording, ClearsAwayWhatAKilledRunWasWriting) {
  const std::vector<std::string> own = {"best.safetensors.partial-12",
                                        "model.safetensors.partial-4194304",
                                        "summary.json.partial-1",
                                        "best.safetensors.partial"};
  const std::vector<std::string> others = {"mine.safetensors.partial-12",
                                           "model.safetensors.partial-of-mine",
                                           "best.safetensors",
                                           ".partial"};
  for (const std::int64_t step : {0, 3}) {
    for (const auto& names : {own, others}) {
      for (const std::string& name : names) {
        write(name, "?");
      }
    }
    record_after(step);
    for (const std::string& name : own) {
      EXPECT_FALSE(fs::exists(path(name))) << name;
    }
    for (const std::string& name : others) {
      EXPECT_EQ(fs::exists(path(name)), step == 0 || name != "best.safetensors") << name;
    }
  }
}

TEST(BestWeights, ComeBackWithTheCheckpoint) {
  const TemporaryFolder run;
  const std::string file = run.path() + "/best.safetensors";
  const CheckpointFolder checkpoints(run.path() + "/checkpoints");
  const auto write = [&](const std::string& text) {  // as a new file, like everything we write
    std::ofstream(file + ".new") << text;
    fs::rename(file + ".new", file);
  };
  const auto appear = [&](std::int64_t step) {
    fs::create_directories(checkpoints.path_of(step));
    std::ofstream(checkpoints.path_of(step) + "/manifest.json") << "{}";
  };
  fs::create_directories(checkpoints.path());
  detail::BestWeights best(run.path());
  best.keep_with(1);  // before there is one
  appear(1);
  write("two");
  best.keep_with(2);
  appear(2);
  best.keep_with(3);
  write("three");
  appear(3);
  best.keep_with(4);
  best.put_back(3, true);
  EXPECT_EQ(testing::read_file(file), "two");
  best.put_back(4, true);
  EXPECT_EQ(testing::read_file(file), "three");
  best.put_back(2, true);
  EXPECT_EQ(testing::read_file(file), "two");
  best.put_back(1, false);
  EXPECT_FALSE(fs::exists(file));
  // Of checkpoints that are gone nothing stays; one that is being written is not gone.
  fs::remove_all(checkpoints.path_of(2));
  best.forget();
  std::size_t left = 0;
  for (const auto& entry : fs::directory_iterator(checkpoints.path())) {
    left += entry.path().filename().string().starts_with(".best-") ? 1 : 0;
  }
  EXPECT_EQ(left, 2U);
}

}  // namespace
}  // namespace trireme::continued_run_test
