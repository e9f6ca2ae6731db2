#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "checkpoint/made_checkpoint.h"
#include "support/processes.h"
#include "trireme/checkpoint/checkpoint_folder.h"
#include "trireme/checkpoint/safetensors.h"

namespace trireme::ckpt_command_test {
namespace {

namespace fs = std::filesystem;
using testing::by_columns;
using testing::Finished;
using testing::made;
using testing::MadeTensor;
using testing::save_checkpoint;
using Words = std::vector<std::string>;

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

MadeTensor floats(const std::string& kind, const std::string& name, float scale) {
  return made<float>(
      kind, name, {6, 4}, [=](std::int64_t i) { return scale * static_cast<float>(i); });
}

std::vector<MadeTensor> state(float scale) {
  return {floats(kWeightKind, "layer.weight", scale),
          made<std::int64_t>(kBufferKind, "count", {1}, [](std::int64_t) { return 3; }),
          floats("optimizer.exp_avg", "layer.weight", 2 * scale)};
}

class CkptCommand : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }
  std::string run() const { return path("run"); }
  CheckpointFolder checkpoints() const { return CheckpointFolder(path("run/checkpoints")); }

  Finished ckpt(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), {testing::trireme_binary(), "ckpt"});
    return testing::run_program(std::move(arguments));
  }
  // The command ends with this code and says all of this, in its output or its errors.
  Finished expect(std::vector<std::string> arguments,
                  int code,
                  const std::vector<std::string>& parts = {}) const {
    std::string words;
    for (const std::string& word : arguments) {
      words += " " + word;
    }
    const Finished done = ckpt(std::move(arguments));
    EXPECT_EQ(done.code, code) << words << "\n" << done.out << done.err;
    for (const std::string& part : parts) {
      EXPECT_TRUE(has(done.out + done.err, part)) << words << "\nno \"" << part << "\" in\n"
                                                  << done.out << done.err;
    }
    return done;
  }

  void save(std::int64_t step, float scale = 1, const Notes& notes = {}, int ranks = 2) const {
    save_checkpoint(checkpoints().path(), step, state(scale), notes, ranks);
  }
  // Changes one byte near the end of a file.
  static void damage(const std::string& file) {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(-2, std::ios::end);
    const int byte = stream.get();
    stream.seekp(-2, std::ios::end);
    stream.put(static_cast<char>(byte ^ 1));
  }

  testing::TemporaryFolder folder_;
};

TEST_F(CkptCommand, ListsCheckpointsAndMarksTheNewest) {
  save(5);
  save(10, 1, {}, 3);
  fs::create_directories(checkpoints().path() + "/.step-00000015-0003");
  for (const std::string& place : {run(), run() + "/", checkpoints().path()}) {
    const Finished done = expect({"ls", place}, 0, {"step", "ranks", ".step-00000015-0003"});
    std::istringstream lines(done.out);
    std::string line;
    int found = 0;
    while (std::getline(lines, line)) {
      if (line.starts_with("5 ")) {
        EXPECT_FALSE(has(line, "newest")) << line;
        ++found;
      } else if (line.starts_with("10 ")) {
        EXPECT_TRUE(line.ends_with("newest")) << line;
        EXPECT_TRUE(has(line, "  3  ")) << line;  // ranks, and tensors
        ++found;
      }
    }
    EXPECT_EQ(found, 2) << done.out;
  }
}

TEST_F(CkptCommand, AListSaysWhichManifestIsBroken) {
  save(5);
  save(10);
  std::ofstream(checkpoints().path_of(5) + "/manifest.json", std::ios::app) << "?";
  expect({"ls", run()}, 1, {"broken", "newest", "step-00000005/manifest.json"});
}

TEST_F(CkptCommand, ListsASingleCheckpoint) {
  save(5);
  save(10);
  for (const std::string& place : {checkpoints().path_of(5), checkpoints().path_of(5) + "/"}) {
    const Finished done = expect({"ls", place}, 0, {checkpoints().path_of(5) + "\n", "\n5 "});
    EXPECT_FALSE(has(done.out, "\n10 ")) << done.out;
  }
  fs::rename(checkpoints().path_of(5), path("kept"));
  expect({"ls", path("kept")}, 0, {path("kept") + "\n", "\n5 "});
  std::ofstream(path("kept/manifest.json"), std::ios::app) << "?";
  expect({"ls", path("kept")}, 1, {"broken", "kept/manifest.json"});
  // What needs all of them says where they are.
  expect({"prune", checkpoints().path_of(10), "--keep-last", "1"},
         2,
         {"a single one", '"' + checkpoints().path() + '"'});
}

TEST_F(CkptCommand, ShowsWhatACheckpointHolds) {
  save(5, 1, {{"settings", std::string(200, 'x')}, {"lines", "one\ntwo"}});
  save(7);
  const std::vector<std::string> parts = {"step 5",
                                          "2 ranks",
                                          "(200 characters)",
                                          "one two",
                                          "weight layer.weight",
                                          "optimizer.exp_avg layer.weight",
                                          "buffer count",
                                          "float32",
                                          "[6, 4]",
                                          "rank-00001.safetensors"};
  expect({"show", checkpoints().path_of(5)}, 0, parts);
  expect({"show", run(), "--step", "5"}, 0, parts);
  expect({"show", run()}, 0, {"step 7"});
  const Finished json = expect({"show", checkpoints().path(), "--json"}, 0);
  const auto parsed = nlohmann::json::parse(json.out);
  EXPECT_EQ(parsed["step"], 7);
  EXPECT_EQ(parsed["tensors"].size(), 3U);
}

TEST_F(CkptCommand, SaysWhatIsNoCheckpoint) {
  save(5);
  expect({"show", path("nowhere")}, 2, {"nothing", path("nowhere")});
  expect({"show", run(), "--step", "6"}, 2, {"which has 5", "found 6"});
  expect({"show", checkpoints().path_of(5), "--step", "5"}, 2, {"--step"});
  fs::create_directories(path("empty"));
  expect({"ls", path("empty")}, 2, {"found none"});
  std::ofstream(path("empty/config.json")) << "{}";
  expect({"ls", path("empty")}, 2, {"--save-every"});
  std::ofstream(path("empty/model.safetensors")) << "x";
  expect({"export", path("empty"), path("out")}, 2, {"are in", path("empty/model.safetensors")});
  std::ofstream(path("empty/config.json")) << R"({"save_every": 20})";
  EXPECT_FALSE(has(expect({"ls", path("empty")}, 2, {"not reached step 20"}).err, "told to"));
  fs::create_directories(path("crossed/fold-1"));
  expect({"ls", path("crossed")}, 2, {"folds"});
  std::ofstream(path("file")) << "x";
  expect({"ls", path("file")}, 2, {"a file"});
  fs::remove(checkpoints().path_of(5) + "/manifest.json");
  expect({"show", checkpoints().path_of(5)}, 1, {"manifest.json", "No such file"});
}

TEST_F(CkptCommand, HelpsWithItsFlagsAndExitCodes) {
  const Finished diff = expect({"diff", "--help"}, 0, {"--no-notes", "2 wrong usage"});
  EXPECT_FALSE(has(diff.out, "{")) << diff.out;
  expect({"verify", "--help"}, 0, {"2 wrong usage"});
  expect({"import", "--help"}, 0, {"not a run's"});
}

TEST_F(CkptCommand, VerifiesEveryByte) {
  save(5);
  save(10);
  save(15);
  expect({"verify", run()}, 0, {"step-00000015", "as they were saved"});
  damage(checkpoints().path_of(5) + "/rank-00001.safetensors");
  fs::resize_file(checkpoints().path_of(10) + "/rank-00000.safetensors", 100);
  damage(checkpoints().path_of(10) + "/rank-00001.safetensors");
  expect({"verify", run()}, 0);  // the newest one
  expect({"verify", run(), "--step", "5"}, 1, {"rank-00001.safetensors", "1 thing is wrong"});
  expect({"verify", run(), "--all"},
         1,
         {"step-00000005: 1 thing is wrong",
          "step-00000010: 2 things are wrong",
          "truncated",
          "step-00000015: all"});
  expect({"verify", run(), "--all", "--step", "5"}, 2, {"--all"});
}

TEST_F(CkptCommand, OutputThatCannotBeWrittenIsAFailure) {
  save(5);
  for (const char* command : {"ls", "show", "verify"}) {
    const auto finished = testing::run_program(
        {"bash",
         "-c",
         testing::trireme_binary() + " ckpt " + command + " " + run() + " > /dev/full"});
    EXPECT_EQ(finished.code, 1) << command;
    EXPECT_NE(finished.err.find("standard output could not be written"), std::string::npos)
        << finished.err;
  }
}

TEST_F(CkptCommand, ExportsAndImportsSafetensors) {
  save(5, 0.5F);
  const std::string out = path("out.safetensors");
  expect({"export", run(), out}, 0, {out, "2 tensors", "step-00000005"});
  const SafetensorsFile file(out);
  EXPECT_EQ(file.entries().size(), 2U);
  const auto* values = reinterpret_cast<const float*>(file.tensor("layer.weight").bytes());
  EXPECT_EQ(values[23], 11.5F);
  expect({"export", run(), out}, 2, {"already exists", "--force"});
  expect({"export", run(), out, "--force"}, 0);
  // A folder is not replaced by a file.
  fs::create_directories(path("there"));
  for (const Words& more : {Words{}, Words{"--force"}, Words{"--format", "torch", "--force"}}) {
    Words call = {"export", run(), path("there")};
    call.insert(call.end(), more.begin(), more.end());
    expect(call, 2, {"expected the name of a file", "the folder \"" + path("there") + "\""});
  }
  EXPECT_TRUE(fs::is_empty(path("there")));
  expect({"export", run(), path("average"), "--average"}, 2, {"no moving averages"});
  expect({"export", out, path("average"), "--average"}, 2, {"--average", "average.safetensors"});
  expect({"export", run(), path("x"), "--dtype", "int8"}, 2, {"--dtype"});
  expect({"export", run(), path("no/such/folder/x")}, 2, {"No such file"});
  expect({"export", run(), path("no/such/folder/x.pt")}, 2, {"No such file"});
  expect({"export", run(), "/proc/x.pt"}, 2, {"/proc/x.pt"});
  expect({"export", run(), out + "/x.safetensors"}, 2, {"Not a directory"});
  expect({"export", run(), path("x.safetensors"), "--format", "gpt2"}, 2, {"tokens.weight"});
  EXPECT_FALSE(fs::exists(path("x.safetensors")));
  // An ending that says nothing we know is no reason to guess; a name without one is no ending.
  for (const std::string name : {"x.xyz", "x.gguf", "x.PT", "v1.5"}) {
    expect({"export", run(), path(name)}, 2, {name, ".safetensors", ".pt, .pth", "--format"});
    EXPECT_FALSE(fs::exists(path(name)));
  }
  expect({"export", run(), path("v1.5"), "--format", "safetensors"}, 0);
  expect({"export", run(), path("plain")}, 0);
  expect({"diff", path("plain"), out}, 0);
  expect({"export", run(), "-"}, 2, {"\"-\"", "not text"});
  EXPECT_FALSE(fs::exists("-"));

  expect({"import", out, path("new")}, 0, {"new/step-00000000", "2 tensors"});
  expect({"diff", path("new"), out}, 0, {"2 tensors are equal"});
  expect({"import", out, path("new")}, 2, {"already exists"});
  expect({"import", out, run(), "--step", "20"}, 0, {"run/checkpoints/step-00000020"});
  expect({"import", path("missing"), run()}, 2, {"nothing"});
  expect({"import", run(), run()}, 2, {"model.safetensors"});
  // A run would take them for its newest checkpoint, and could not go on from it.
  std::ofstream(run() + "/config.json") << "{}";
  const std::size_t before = checkpoints().steps().size();
  for (const std::string& place : {run(), run() + "/checkpoints"}) {
    expect({"import", out, place, "--step", "30"}, 2, {"of the run", "--weights-from"});
  }
  EXPECT_EQ(checkpoints().steps().size(), before);
  std::ofstream(path("broken")) << "not a file of weights";
  expect({"import", path("broken"), path("new"), "--step", "1"}, 2, {path("broken"), "byte 0"});
  expect({"import", out, path("new"), "--format", "gpt2", "--step", "1"}, 2, {"wte.weight"});
}

TEST_F(CkptCommand, FindsTheHeadsOfAGptInItsRun) {
  // A gpt without layers is one.
  const auto gpt = [](std::int64_t rows, const std::string& name) {
    return made<float>(kWeightKind, name, {rows, 12}, [](std::int64_t) { return 1.0F; });
  };
  const auto norm = [](const std::string& name) {
    return made<float>(kWeightKind, name, {12}, [](std::int64_t) { return 1.0F; });
  };
  const std::vector<MadeTensor> tensors = {
      gpt(7, "tokens.weight"), gpt(5, "places.weight"), norm("norm.weight"), norm("norm.bias")};
  save_checkpoint(checkpoints().path(), 1, tensors);
  const auto heads = [&](const std::string& name) {
    return nlohmann::json::parse(testing::read_file(path(name + "/config.json")))["n_head"];
  };
  expect({"export", run(), path("unknown"), "--format", "gpt2"}, 2, {"--heads"});
  EXPECT_FALSE(fs::exists(path("unknown")));
  expect({"export", run(), path("given"), "--format", "gpt2", "--heads", "3"}, 0);
  EXPECT_EQ(heads("given"), 3);
  // What was exported as a folder can be imported as one.
  expect({"import", path("given"), path("back")}, 0, {"back/step-00000000"});
  expect({"diff", path("back"), run()}, 1, {"4 tensors are equal", "imported_from: only in A"});
  expect({"export", run(), path("wrong"), "--format", "gpt2", "--heads", "5"}, 2, {"multiple"});
  std::ofstream(run() + "/config.json") << R"({"model":"gpt","size":"small"})";
  expect({"export", run(), path("by_size"), "--format", "gpt2"}, 0);
  EXPECT_EQ(heads("by_size"), 6);
  save_checkpoint(checkpoints().path(), 2, tensors, {{"settings", R"({"model":"gpt","heads":2})"}});
  expect({"export", run(), path("by_note"), "--format", "gpt2"}, 0);
  EXPECT_EQ(heads("by_note"), 2);
}

TEST_F(CkptCommand, TellsTwoCheckpointsApart) {
  save(5, 1, {{"position", "10"}}, 2);
  save(10, 1, {{"position", "10"}}, 3);
  expect({"diff", checkpoints().path_of(5), checkpoints().path_of(10)}, 0, {"3 tensors are equal"});
  save(15, 1, {{"position", "11"}, {"more", ""}});
  expect({"diff", checkpoints().path_of(5), run()}, 1, {"note position", "more: only in B"});
  expect({"diff", checkpoints().path_of(5), run(), "--no-notes"}, 0);

  auto changed = state(1);
  changed[0] = by_columns(changed[0]);
  changed[0].bytes[4 * sizeof(float)] ^= std::byte{1};  // one element
  changed[2].tensor.shape = {4, 6};
  changed.push_back(floats(kWeightKind, "other", 1));
  save_checkpoint(checkpoints().path(), 20, changed, {{"position", "10"}});
  expect({"diff", checkpoints().path_of(5), checkpoints().path_of(20)},
         1,
         {"weight layer.weight: 1 of 24 elements differ",
          "optimizer.exp_avg layer.weight: float32 [6, 4] and float32 [4, 6]",
          "only in B: weight other",
          "1 tensor is equal"});
  expect({"diff", run(), run(), "--step", "10"}, 0);
  expect({"diff", run(), path("nowhere")}, 2, {"nowhere"});
  damage(checkpoints().path_of(20) + "/rank-00001.safetensors");
  // Not 1: whether they differ is not known.
  expect({"diff", run(), checkpoints().path_of(5)}, 2, {"rank-00001.safetensors", "checksum"});
  std::ofstream(path("text")) << "these are no weights";
  expect({"diff", run(), path("text"), "--step", "10"}, 2, {path("text")});
}

TEST_F(CkptCommand, PrunesAllButWhatIsToStay) {
  for (const std::int64_t step : {10, 20, 25, 30, 35}) {
    save(step);
  }
  fs::create_directories(checkpoints().path() + "/.step-00000040-0009");
  expect({"prune", run(), "--keep-last", "1", "--keep-every", "10", "--dry-run"},
         0,
         {"would remove", "step-00000025", ".step-00000040-0009", "4 checkpoints stay"});
  EXPECT_EQ(checkpoints().steps().size(), 5U);
  {
    const FolderLock lock(checkpoints().path());
    expect(
        {"prune", run(), "--keep-last", "1"}, 2, {"another job", "removes old checkpoints itself"});
    // What only looks takes no lock: not of a run that is alive, and in no folder that it may not
    // write.
    expect({"prune", run(), "--keep-last", "1", "--dry-run"}, 0, {"would remove"});
    EXPECT_EQ(checkpoints().steps().size(), 5U);
  }
  std::ofstream(checkpoints().path() + "/.best-step-00000025") << "weights";
  expect({"prune", run(), "--keep-last", "1", "--keep-every", "10"}, 0, {"removed"});
  EXPECT_FALSE(fs::exists(checkpoints().path() + "/.best-step-00000025"))
      << "it is as large as the model";
  EXPECT_EQ(checkpoints().steps(), (std::vector<std::int64_t>{10, 20, 30, 35}));
  EXPECT_TRUE(checkpoints().unfinished().empty());
  // The one that training goes on from stays, however old.
  checkpoints().set_latest(10);
  expect({"prune", run(), "--keep-last", "1"}, 0, {"2 checkpoints stay"});
  EXPECT_EQ(checkpoints().steps(), (std::vector<std::int64_t>{10, 35}));
  expect({"prune", run()}, 2, {"--keep-last"});
  expect({"prune", run(), "--keep-last", "0"},
         2,
         {"--keep-last: expected a number of at least 1, found \"0\""});
  expect(
      {"export", run(), path("out"), "--format", "gpt3"},
      2,
      {"--format: expected one of safetensors, torch, gpt2, found \"gpt3\"; did you mean gpt2?"});
}

TEST_F(CkptCommand, NamesTheNearestCommand) {
  expect({"verfy", run()}, 2, {"did you mean verify?"});
  expect({}, 2, {"expected a command (", "found none"});
}

}  // namespace
}  // namespace trireme::ckpt_command_test
