// Commands that are given something else where they expect the folder of a run.

#include "tools/train_runs.h"

namespace trireme::run_folder_command_test {
namespace {

namespace fs = std::filesystem;
using testing::expect_parts;
using testing::Finished;
using testing::run_program;
using testing::trireme_binary;
using testing::Words;

class RunFolderCommand : public testing::TrainRuns {
 protected:
  // What every command that reads a run says about this path.
  void expect_refusal(const std::string& run, const Words& parts) {
    const std::vector<Words> commands = {{"predict", run, "--data", "new.csv"},
                                         {"sample", "--run", run},
                                         {"plot", run},
                                         {"compare", run, run}};
    for (Words command : commands) {
      SCOPED_TRACE(command[0]);
      command.insert(command.begin(), trireme_binary());
      const Finished finished = run_program(command);
      EXPECT_EQ(finished.code, 2) << finished.err;
      EXPECT_EQ(finished.out, "");
      expect_parts(finished.err, {run, "expected the folder of a run"});
      expect_parts(finished.err, parts);
    }
  }
};

TEST_F(RunFolderCommand, SaysWhatIsThereAndWhatToGive) {
  expect_refusal(path("none"), {"found nothing with this name", "--run"});
  expect_refusal(data_.write("a.csv", "1,2\n"), {"found a file", "trireme train says"});
  fs::create_directories(path("empty"));
  expect_refusal(path("empty"), {"found no config.json in this folder", "trireme train says"});
  // A file or a folder of a run, and a folder of runs.
  fs::create_directories(path("runs/first/checkpoints/step-00000200"));
  fs::create_directories(path("runs/second"));
  data_.write("runs/first/config.json", R"({"model": "mlp"})");
  const std::string run = path("runs/first");
  expect_refusal(data_.write("runs/first/model.safetensors", "x"),
                 {"found a file", "belongs to the run in \"" + run + "\""});
  expect_refusal(path("runs/first/checkpoints"), {"belongs to the run in \"" + run + "\""});
  expect_refusal(path("runs/first/checkpoints/step-00000200/"),
                 {"belongs to the run in \"" + run + "\""});
  data_.write("runs/second/config.json", R"({"model": "mlp"})");
  expect_refusal(path("runs"), {"one of the runs in it, such as \"" + path("runs/second") + "\""});
  expect_refusal("/dev/null", {"found something that is neither a folder nor a file"});
}

TEST_F(RunFolderCommand, TrainingTakesNoFileForAFolder) {
  const std::string file = data_.write("a.csv", "1,2\n");
  const Finished resumed = run_program({trireme_binary(), "train", "--resume", file});
  EXPECT_EQ(resumed.code, 2);
  expect_parts(resumed.err, {"--resume", file, "expected the folder of a run", "found a file"});
  const Finished begun = train("a.csv", mlp() + "--steps 1");
  EXPECT_EQ(begun.code, 2);
  expect_parts(begun.err, {"--run", file, "expected a folder", "found a file", "another name"});
  EXPECT_EQ(testing::read_file(file), "1,2\n");
}

}  // namespace
}  // namespace trireme::run_folder_command_test
