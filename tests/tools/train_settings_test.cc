// What trireme train makes of settings that are given where they mean nothing, or in other words.

#include <filesystem>

#include "tools/train_runs.h"

namespace trireme::train_settings_test {
namespace {

namespace fs = std::filesystem;
using testing::expect_parts;
using testing::Finished;
using testing::Json;
using testing::Words;

class TrainSettingsGiven : public testing::TrainRuns {
 protected:
  std::string table() const {
    std::string rows = "x,y,kind\n";
    for (int i = 0; i < 30; ++i) {
      rows += std::to_string(i) + "," + std::to_string(i * i % 7) + (i % 2 == 0 ? ",a\n" : ",b\n");
    }
    return "--model mlp --batch 6 -n 1 --data " + data_.write("rows.csv", rows) + " ";
  }

  // Refused before anything is made, with the flag and why.
  void expect_refusal(const std::string& settings, const Words& parts) const {
    const Finished finished = train("refused", settings);
    EXPECT_EQ(finished.code, 2) << settings << "\n" << finished.out << finished.err;
    expect_parts(finished.err, parts);
    EXPECT_FALSE(fs::exists(path("refused"))) << settings << " has made a folder";
  }

  Finished shown(const std::string& settings) const {
    return train("shown", settings + " --print-config");
  }
  Json settings_shown(const std::string& settings) const {
    const Finished finished = shown(settings);
    EXPECT_EQ(finished.code, 0) << settings << "\n" << finished.err;
    return testing::parse_json(finished.out);
  }
};

TEST_F(TrainSettingsGiven, AreRefusedWhereTheyHaveNoEffect) {
  const std::vector<std::pair<std::string, Words>> cases = {
      {mlp() + "--layers 12",
       {"--layers: found 12, which has no effect", "model mlp", "gpt and bert", "--model"}},
      {mlp() + "--heads 7", {"--heads:", "mlp"}},
      {mlp() + "--stages 4,8", {"--stages:", "convnet does"}},
      {mlp() + "--sequence 8", {"--sequence:"}},
      {mlp() + "--stride 8", {"--stride:"}},
      {wide() + "--dropout 0.5", {"--dropout:", "wide"}},
      {wide() + "--normalise standard", {"--normalise:", "mlp and convnet"}},
      {mlp() + "--sparse-update lazy", {"--sparse-update:", "mlp", "wide does"}},
      {gpt() + "--hidden 5", {"--hidden:", "gpt"}},
      {gpt() + "--flip", {"--flip: found true", "gpt"}},
      {gpt() + "--target x", {"--target:", "format text", "csv does", "another --model"}},
      {mlp() + "--missing mean", {"--missing:", "format idx"}},
      {gpt() + "--regression", {"--regression:", "csv and libsvm"}},
      {table() + "--shift 2", {"--shift:", "format csv", "idx does"}},
      {mlp() + "--momentum 0.5", {"--momentum:", "optimizer adamw", "sgd", "--optimizer"}},
      {mlp() + "--optimizer sgd --beta2 0.9", {"--beta2:", "optimizer sgd", "adam"}},
      {mlp() + "--schedule linear --gamma 0.5", {"--gamma:", "schedule linear", "multi_step"}},
      {mlp() + "--schedule constant --rise 0.5", {"--rise:", "one_cycle"}},
      {mlp() + "--loss-scale-window 5", {"--loss-scale-window:", "float16"}},
      {mlp() + "--shares 2", {"--shares:", "hash"}},
      {mlp() + "--steps 3 --epochs 2", {"--epochs:", "steps is 3", "--steps 0"}},
      {mlp() + "--folds 3 --eval-fraction 0.5", {"--eval-fraction:", "--folds"}},
      {table() + "--eval-fraction 0.2 --eval-data " + path("rows.csv"),
       {"--eval-fraction:", "--eval-data says"}},
      {mlp() + "--keep-last 1", {"--keep-last:", "--save-every"}},
      {mlp() + "--tensorboard off --histogram-every 1", {"--histogram-every:", "--tensorboard"}},
  };
  for (const auto& [settings, parts] : cases) {
    expect_refusal(settings, parts);
  }
}

TEST_F(TrainSettingsGiven, MayBeWhatTheyAreAnyway) {
  for (const std::string& settings : {mlp() + "--layers 0 --momentum -1 --flip off",
                                      gpt() + "--dropout -1 --missing refuse",
                                      mlp() + "--folds 3 --eval-fraction 0",
                                      mlp() + "--schedule constant --gamma 0.1 --epochs 2"}) {
    const Finished finished = shown(settings);
    EXPECT_EQ(finished.code, 0) << settings << "\n" << finished.err;
  }
  // They do have one.
  for (const std::string& settings :
       {gpt() + "--layers 2 --stride 3 --dropout 0.5 --decay-all",
        convnet() + "--shift 1 --flip --noise 0.1 --normalise standard --recompute",
        wide() + "--width 8 --optimizer sgd --momentum 0.5 --nesterov",
        table() + "--target kind --header yes --separator comma --missing mean --unseen ignore",
        mlp() + "--schedule plateau --gamma 0.5 --plateau-patience 2 --partition hash --shares 2",
        mlp() + "--steps 0 --epochs 2 --save-every 5 --keep-last 1 --histogram-every 1"}) {
    const Finished finished = shown(settings);
    EXPECT_EQ(finished.code, 0) << settings << "\n" << finished.err;
    EXPECT_EQ(finished.err, "");
  }
}

// A file is for several models, or what a run has written, with every setting: nothing is refused
// for it, but what somebody may have meant is named.
TEST_F(TrainSettingsGiven, OfAFileAreNamedWhereTheyHaveNoEffect) {
  for (const std::string& settings :
       {gpt(), mlp() + "--optimizer sgd", convnet(), wide() + "--optimizer lion"}) {
    const std::string file = data_.write("all.json", shown(settings).out);
    const Finished again = shown("--config " + file);
    EXPECT_EQ(again.code, 0) << again.err;
    EXPECT_EQ(again.err, "") << settings;
  }
  const std::string file =
      data_.write("some.json",
                  R"({"model": "mlp", "layers": 12, "optimizer": {"type": "SGD",)"
                  R"( "params": {"lr": 0.1, "betas": [0.5, 0.9]}}})");
  const Finished finished = shown("--config " + file);
  EXPECT_EQ(finished.code, 0) << finished.err;
  expect_parts(finished.err,
               {file + ": layers is 12, which has no effect", "beta1 is 0.5", "optimizer sgd"});
  EXPECT_FALSE(testing::parse_json(finished.out).contains("layers"));
}

// What the file's micro-batch means for the batch it means only where no flag says another.
TEST_F(TrainSettingsGiven, ByAFlagCountBeforeWhatAFileForDeepspeedLeavesOut) {
  const std::string words = "--model mlp -n 2 --config " +
                            data_.write("micro.json", R"({"train_micro_batch_size_per_gpu": 4})");
  EXPECT_EQ(settings_shown(words).at("batch"), 4 * 2);
  EXPECT_EQ(settings_shown(words).at("clip_norm"), 0.0);
  const Json flagged = settings_shown(words + " --batch 64 --clip-norm 0.5");
  EXPECT_EQ(flagged.at("batch"), 64);
  EXPECT_EQ(flagged.at("micro_batch"), "4");
  EXPECT_EQ(flagged.at("clip_norm"), 0.5);
}

// No -1 that stands for something else, and nothing that counts for nothing.
TEST_F(TrainSettingsGiven, AreShownWithWhatWillBeUsed) {
  const Json gpt_shown = settings_shown("--model gpt --steps 300");
  EXPECT_EQ(gpt_shown.at("warm_up"), 15) << "5 % of the steps";
  EXPECT_FALSE(gpt_shown.contains("epochs")) << "the steps decide";
  EXPECT_FALSE(gpt_shown.contains("momentum")) << "adamw has none";
  EXPECT_FALSE(settings_shown("--model gpt --epochs 2").contains("warm_up"))
      << "it follows from the data";
  EXPECT_EQ(settings_shown("--model gpt --epochs 2 --warm-up 7").at("warm_up"), 7);
  EXPECT_EQ(settings_shown("--model gpt --steps 3 --warm-up 7").at("warm_up"), 7)
      << "its rates are those of the longer run that it begins";
  EXPECT_EQ(settings_shown(mlp()).at("warm_up"), 0);
  EXPECT_EQ(settings_shown(mlp() + "--optimizer sgd").at("momentum"), 0.9);
  const Json shown_table = settings_shown(table());
  EXPECT_TRUE(shown_table.contains("target"));
  EXPECT_FALSE(shown_table.contains("shift"));
  EXPECT_FALSE(settings_shown(mlp()).contains("target"));
  for (const auto& [name, value] : gpt_shown.items()) {
    EXPECT_NE(value, -1) << name;
  }
}

// What follows from a size is in effect, too; another size has other consequences.
TEST_F(TrainSettingsGiven, AreShownAsWhatTheyComeTo) {
  const auto sizes = [](const Json& settings) {
    return Json({settings.at("layers"),
                 settings.at("width"),
                 settings.at("heads"),
                 settings.at("sequence")});
  };
  const Json tiny = settings_shown("--model gpt");
  EXPECT_EQ(sizes(tiny), Json({4, 128, 4, 64}));
  EXPECT_EQ(sizes(settings_shown("--model bert --size small --layers 2")), Json({2, 384, 6, 256}));
  EXPECT_EQ(settings_shown(wide() + "--width 0").at("width"), 16);
  const std::string file = data_.write("tiny.json", tiny.dump());
  EXPECT_EQ(sizes(settings_shown("--config " + file)), Json({4, 128, 4, 64}));
  EXPECT_EQ(sizes(settings_shown("--config " + file + " --size small --heads 4")),
            Json({6, 384, 4, 256}));
  expect_refusal("--model gpt --heads 3", {"--heads: expected a divisor of the width of 128"});
  expect_refusal(wide() + "--sparse-update lazy --optimizer lamb",
                 {"--sparse-update: expected exact", "lamb", "found lazy", "adagrad"});
}

TEST_F(TrainSettingsGiven, AreRefusedWhereTheLauncherHasNoUseForThem) {
  expect_refusal(mlp() + "--drill kill --steps 1", {"--drill:", "--elastic", "found neither"});
  expect_refusal(mlp() + "--interfaces eth9 --steps 1", {"--interfaces:", "found \"eth9\""});
  expect_refusal(mlp() + "--algorithm foo --steps 1", {"--algorithm:", "found \"foo\""});
  expect_refusal(mlp() + "--token-file /no/such/file --steps 1", {"--token-file:", "No such file"});
}

// What somebody has typed, or the contents of a file, is not explained by what ranks did last.
TEST_F(TrainSettingsGiven, LeaveNoFlightRecordWhereRanksRefuseThem) {
  const std::string broken = data_.write("broken.csv", "x,kind\n1,a\nz,b\n");
  const std::vector<std::pair<std::string, int>> cases = {
      {mlp() + "-n 2 --steps 1 --batch 62", 2},
      {gpt() + "-n 3 --steps 1 --best f1", 2},
      {convnet() + "-n 2 --steps 1 --stages 4,4,4,4,4", 2},
      {mlp() + "-n 2 --steps 1 --folds 100", 2},
      {"--model mlp --steps 1 -n 3 --data " + broken, 2},
  };
  for (const auto& [settings, code] : cases) {
    const Finished finished = train("run", settings);
    EXPECT_EQ(finished.code, code) << settings << finished.err;
    for (const char* inside : {"flight record", "last operation", "between operations"}) {
      EXPECT_EQ(finished.err.find(inside), std::string::npos) << finished.err;
    }
    std::error_code error;
    for (fs::recursive_directory_iterator it(path("run"), error), end; !error && it != end;
         it.increment(error)) {
      EXPECT_EQ(it->path().filename().string().find("flight"), std::string::npos) << it->path();
    }
  }
}

TEST_F(TrainSettingsGiven, LeaveNoFolderWhereRanksRefuseThem) {
  const std::string settings = mlp() + "-n 2 --steps 1 --save-every 1 --batch 62 ";
  for (const char* more : {"", "--folds 3"}) {
    EXPECT_EQ(train("new", settings + more).code, 2);
    EXPECT_FALSE(fs::exists(path("new"))) << more;
  }
  // One that was there, with what somebody keeps in it.
  data_.write("kept.txt", "mine");
  fs::create_directory(path("old"));
  fs::rename(path("kept.txt"), path("old/kept.txt"));
  EXPECT_EQ(train("old", settings).code, 2);
  EXPECT_EQ(testing::read_file(path("old/kept.txt")), "mine");
  // One that the program names itself.
  fs::create_directory(path("here"));
  const Finished dated = testing::run_program(
      {"bash",
       "-c",
       "cd " + path("here") + " && " + testing::trireme_binary() + " train " + settings});
  EXPECT_EQ(dated.code, 2) << dated.err;
  EXPECT_TRUE(fs::is_empty(path("here")));
  train_well("new", mlp() + "-n 2 --steps 1");
}

}  // namespace
}  // namespace trireme::train_settings_test
