// Calls that are wrong, and what they leave.

#include <filesystem>

#include <signal.h>

#include "support/free_port.h"
#include "tools/train_runs.h"
#include "trireme/checkpoint/checkpoint_folder.h"
#include "trireme/core/version.h"
#include "trireme/settings/settings_table.h"

namespace trireme::wrong_calls_test {
namespace {

namespace fs = std::filesystem;
using testing::expect_parts;
using testing::Finished;
using testing::run_program;
using testing::trireme_binary;
using testing::Words;
using testing::words;

class WrongCalls : public testing::TrainRuns {
 protected:
  void expect_refusal(Words call, const Words& parts) const {
    call.insert(call.begin(), trireme_binary());
    const Finished finished = run_program(call);
    EXPECT_EQ(finished.code, 2) << finished.out << finished.err;
    expect_parts(finished.err, parts);
  }

  // As a shell calls it.
  static Finished in_shell(const std::string& rest) {
    return run_program({"bash", "-c", trireme_binary() + " " + rest});
  }
};

TEST_F(WrongCalls, ALimitOfRanksIsNamed) {
  expect_refusal({"run", "--elastic", "1:9999999", "--", "true"},
                 {"--elastic: expected at most 120 ranks, found 9999999"});
}

TEST_F(WrongCalls, WhatTheRuleOfAnOptimizerRefusesIsSaidOfTheFlag) {
  expect_refusal({"train", "--data", "licenses", "--beta1", "1", "--print-config"},
                 {"trireme: --beta1: adamw: ", "from 0 to below 1, found 1"});
  expect_refusal({"train", "--data", "licenses", "--flip", "maybe", "--print-config"},
                 {"--flip: expected on or off, found \"maybe\""});
}

TEST_F(WrongCalls, TheTimeoutOfTheEnvironmentIsThatOfATrainingWithoutOne) {
  const auto shown = [](const std::string& variable, const Words& more) {
    Words call = {
        "env", variable, trireme_binary(), "train", "--data", "licenses", "--print-config"};
    call.insert(call.end(), more.begin(), more.end());
    return run_program(call);
  };
  expect_parts(shown("TRIREME_TIMEOUT=7", {}).out, {"\"timeout\": 7.0"});
  expect_parts(shown("TRIREME_TIMEOUT=7", {"--timeout", "9"}).out, {"\"timeout\": 9.0"});
  const Finished refused = shown("TRIREME_TIMEOUT=soon", {});
  EXPECT_EQ(refused.code, 2) << refused.out << refused.err;
  expect_parts(refused.err, {"TRIREME_TIMEOUT", "found \"soon\""});
}

TEST_F(WrongCalls, WhatToTypeNextCanBeTyped) {
  const std::string run = path("my run");
  Words call = words(gpt() + "-n 1 --steps 1 --save-every 1 --run");
  call.insert(call.begin(), {trireme_binary(), "train"});
  call.push_back(run);
  const Finished trained = run_program(call);
  EXPECT_EQ(trained.code, 0) << trained.err;
  expect_refusal({"train", "--resume", "never", "--run", run},
                 {"to resume it: trireme train --resume '" + run + "'"});
}

// As CLI11 would have it, that flag is the value.
TEST_F(WrongCalls, AFlagIsNoValueOfAnother) {
  const std::vector<std::pair<Words, Words>> calls = {
      {{"train", "--data", "--batch", "4"}, {"--data: expected a value, found \"--batch\""}},
      {{"train", "--run", "-n", "4"}, {"--run: expected a value, found \"-n\"", "--run=VALUE"}},
      {{"run", "-n", "1", "--log-dir", "--", "true"}, {"--log-dir: expected a value"}},
      {{"plot", path("run"), "-o", "--metric", "loss"},
       {"-o: expected a value, found \"--metric\""}},
      {{"compare", "--json", "--x", "a", "b"}, {"--json: expected a value, found \"--x\""}},
      {{"ckpt", "export", "--format", "--average", "a", "b"}, {"--format: expected a value"}},
      {{"predict", "run", "--data", "--output", "x"}, {"--data: expected a value"}},
      {{"sample", "--run", "--prompt", "x"}, {"--run: expected a value, found \"--prompt\""}},
      {{"bench", "optim", "--json", "--rounds", "2"}, {"--json: expected a value"}}};
  for (const auto& [call, parts] : calls) {
    expect_refusal(call, parts);
  }
  EXPECT_FALSE(fs::exists("--x") || fs::exists("--"));
  // A negative number is a value, and so is what is attached.
  expect_refusal({"train", "--lr", "-1"}, {"--lr: expected a number above 0"});
  expect_refusal({"train", "--data=--batch"}, {"--data: expected a file", "\"--batch\""});
}

TEST_F(WrongCalls, AnEmptyValueIsNone) {
  for (const Words& call : {words("run --elastic 1:2 --drill"), words("run -n 1 --token-file")}) {
    Words all = call;
    all.insert(all.end(), {"", "--", "true"});
    expect_refusal(all, {call.back() + ": expected a value, found \"\""});
  }
  expect_refusal({"run", "-n", "1", "--encrypt=maybe", "--", "true"},
                 {"--encrypt: expected no value, found \"maybe\""});
  expect_refusal({"train", "--print-config=3"}, {"--print-config: expected no value, found \"3\""});
  // Nor is it the default, of which nobody would hear.
  for (const std::string flag : {"--data",
                                 "--model",
                                 "--run",
                                 "--eval-data",
                                 "--target",
                                 "--weights-from",
                                 "--optimizer",
                                 "--resume",
                                 "--flip"}) {
    expect_refusal({"train", flag, "", "--print-config"}, {flag + ": expected ", "found \"\""});
  }
  // As CLI11 would have it, the value is the next word.
  expect_refusal({"train", "--data=", "--print-config"}, {"--data: expected a value, found none"});
  expect_refusal({"train", "--run=", "-n", "2"}, {"--run: expected a value, found none"});
  // An empty list is a list.
  Words call = words("--model mlp --print-config --data " + data_.write("a.csv", "x,y\n1,a\n"));
  call.insert(call.end(), {"--missing-values", ""});
  call.insert(call.begin(), {trireme_binary(), "train"});
  const Finished finished = run_program(call);
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_EQ(testing::parse_json(finished.out).at("missing_values"), testing::Json::array());
}

TEST_F(WrongCalls, WhatIsLeftOutIsNamed) {
  const std::vector<std::pair<std::string, Words>> calls = {
      {"ckpt verify", {"PLACE: expected a checkpoint", "found none", "trireme ckpt verify --help"}},
      {"ckpt export a", {"OUT: expected the file or folder to write, found none"}},
      {"ckpt diff a", {"B: expected the other one, found none"}},
      {"ckpt prune a", {"--keep-last: expected the number", "found none"}},
      {"compare a", {"B: expected the folder of the other run, found none"}},
      {"plot", {"RUN: expected the folders of runs, found none"}},
      {"drill", {"RUN: expected the folder of a run, or a drill.json, found none"}},
      {"scale 1", {"N: expected how many ranks it is to have, found none"}},
      {"predict a", {"--data: expected a file like the one", "found none"}},
      {"sample", {"RUN: expected the folder of the run, found none"}},
      {"train --model wide", {"a CSV file or one in libsvm's format"}},
      {"compare --run a b", {"found --run; expected no flag: trireme compare A B"}},
      {"bench collectives --bytes 5XB", {"--bytes: expected a size such as 64MiB", "\"xb\""}},
      {"bench train --epochs 0", {"--epochs: expected a number above 0, found \"0\""}}};
  for (const auto& [call, parts] : calls) {
    expect_refusal(words(call), parts);
  }
}

TEST_F(WrongCalls, HelpOfBenchmarksSaysHowToGoOn) {
  const Finished help = run_program({trireme_binary(), "bench", "--help"});
  EXPECT_EQ(help.code, 0);
  expect_parts(help.out, {"trireme bench NAME --help", "--json FILE", "--peers", "needs root"});
}

TEST_F(WrongCalls, HelpShowsAnArgumentOnce) {
  const auto help = [](const std::string& call) {
    Words all = words(call + " --help");
    all.insert(all.begin(), trireme_binary());
    return run_program(all).out;
  };
  for (const std::string call : {"sample", "predict", "plot", "drill"}) {
    const std::string text = help(call);
    EXPECT_EQ(text.find("RUN RUN"), std::string::npos) << text;
    const std::size_t flag = text.find("  --run RUN");
    ASSERT_NE(flag, std::string::npos) << text;
    const std::string line = text.substr(flag, text.find('\n', flag) - flag);
    EXPECT_EQ(line.find("REQUIRED"), std::string::npos) << line;
    EXPECT_NE(line.find("The same as RUN"), std::string::npos) << line;
  }
  expect_parts(help("sample"), {"\n  RUN REQUIRED "});
  expect_parts(help("plot"), {"\n  RUN ... REQUIRED "});
  expect_parts(help("ckpt export"), {"\n  OUT REQUIRED ", "CHECKPOINT|RUN|FILE REQUIRED"});
  expect_parts(help("ckpt diff"), {"\n  A REQUIRED ", "\n  B REQUIRED "});
  expect_parts(help("ckpt import"), {"\n  FILE REQUIRED ", "\n  FOLDER REQUIRED "});
}

TEST_F(WrongCalls, AFileThatIsNoProgramIsNamed) {
  data_.write("book.txt", "text");
  const Finished finished = in_shell("--version; cd " + data_.path() + " && " + trireme_binary() +
                                     " run -n 2 -- book.txt");
  EXPECT_EQ(finished.code, 2);
  expect_parts(finished.err, {"\"book.txt\" was not found in PATH; ./book.txt is no program"});
}

TEST_F(WrongCalls, HelpIsAlsoACommand) {
  const Finished flag = run_program({trireme_binary(), "--help"});
  const Finished help = run_program({trireme_binary(), "help"});
  EXPECT_EQ(help.code, 0) << help.err;
  EXPECT_EQ(help.out, flag.out);
  const Finished of_train = run_program({trireme_binary(), "help", "plot"});
  EXPECT_EQ(of_train.out, run_program({trireme_binary(), "plot", "--help"}).out);
  expect_refusal({"train", "--version"}, {"found --version", "trireme --version"});
  expect_refusal({"ckpt", "show", "--version"}, {"found --version", "trireme --version"});
}

// Of two values, the first would be lost without a word.
TEST_F(WrongCalls, AFlagIsGivenOnce) {
  expect_refusal({"train", "--lr", "0.1", "--lr=0.2"},
                 {"--lr: expected once, found twice, with \"0.1\" and \"0.2\""});
  expect_refusal({"train", "-n", "1", "--ranks", "2"},
                 {"--ranks: expected once", "\"1\" and \"2\""});
  expect_refusal({"run", "-n", "1", "-n", "2", "--", "true"}, {"-n: expected once"});
  expect_refusal({"sample", "a", "--length", "1", "--length", "2"}, {"--length: expected once"});
}

// What mpirun, torchrun and others call it is nearer to something else here.
TEST_F(WrongCalls, NamesOfOtherProgramsAreUnderstood) {
  for (const char* flag : {"--n", "--np", "--nproc-per-node"}) {
    expect_refusal({"train", flag, "2"},
                   {std::string("found ") + flag + "; did you mean -n or --ranks?"});
  }
  expect_refusal({"run", "--np", "2", "--", "true"}, {"found --np; did you mean -n or --ranks?"});
  expect_refusal({"train", "-np", "2"}, {"found -np; did you mean -n?"});
  expect_refusal({"train", "--device", "gpu"}, {"(did you mean cuda?)"});
  expect_refusal({"sample", "a", "--device", "gpu"}, {"did you mean cuda?"});
}

// They agree on words that nobody else reads.
TEST_F(WrongCalls, AWorkerOfAnotherVersionIsNamed) {
  const fs::path real = fs::canonical(trireme_binary()).parent_path();
  const fs::path bin = path("bin");
  fs::create_directories(bin);
  fs::copy_file(real / "trireme", bin / "trireme");
  const std::string worker = (real / "trireme-worker").string();
  data_.write("bin/trireme-worker", "#!/bin/sh\nshift\nexec " + worker + " --for=0.0.1 \"$@\"\n");
  fs::permissions(bin / "trireme-worker", fs::perms::owner_all);
  Words call = command("run", mlp() + "-n 2 --steps 2");
  call[0] = (bin / "trireme").string();
  const Finished finished = run_program(call);
  EXPECT_EQ(finished.code, 2) << finished.out << finished.err;
  const std::string what =
      "expected trireme-worker and trireme of the same version, found the worker";
  expect_parts(finished.err, {what, "started by trireme 0.0.1"});
  EXPECT_EQ(finished.err.find(what), finished.err.rfind(what)) << finished.err;
  EXPECT_FALSE(fs::exists(path("run")));
  const Finished older = run_program({worker, "predict", "a"});
  EXPECT_EQ(older.code, 2);
  expect_parts(older.err, {what, "started by a trireme that does not say its version"});
}

// Help for what is not there is no help.
TEST_F(WrongCalls, AnUnknownCommandIsRefusedWhateverFollows) {
  for (const char* more : {"", " --help", " -h"}) {
    expect_refusal(words(std::string("trian") + more),
                   {"expected a command (", "found \"trian\"; did you mean train?"});
    expect_refusal(words(std::string("ckpt shw") + more), {"found \"shw\"; did you mean show?"});
  }
  expect_refusal(words("train --rendezvous here --data " + data_.write("a.txt", "text")),
                 {"--rendezvous: expected HOST:PORT"});
}

// A dash is standard output where that makes sense, and never the name of a file.
TEST_F(WrongCalls, ADashIsNoFile) {
  const std::string drill =
      data_.write("drill.json", R"({"drill":"kill","seed":1,"exit_code":0,"faults":[]})");
  const Finished drawn = run_program({trireme_binary(), "drill", drill, "-o", "-"});
  EXPECT_EQ(drawn.code, 0) << drawn.err;
  EXPECT_TRUE(drawn.out.starts_with("<svg") || drawn.out.starts_with("<?xml")) << drawn.out;
  for (const char* bench : {"optim", "collectives", "train"}) {
    expect_refusal({"bench", bench, "--json", "-"}, {"--json: expected a file", "\"-\""});
  }
  EXPECT_FALSE(fs::exists("-"));
}

// It would be refused again.
TEST_F(WrongCalls, WhatIsRefusedIsNotTriedAgain) {
  const std::string empty = data_.write("empty.txt", "");
  const std::string table = data_.write("a.csv", "x,kind\n1,a\nzwei,b\n");
  for (const std::string& settings : {"--model gpt -n 2 --data " + empty + " ",
                                      "--model mlp -n 3 --data " + table + " ",
                                      gpt() + "-n 2 --width 131072 "}) {
    for (const char* again : {"--restart 3", "--supervise 3 --save-every 1"}) {
      const Finished finished = train("new/run", settings + "--steps 1 " + again);
      EXPECT_EQ(finished.code, 2) << settings << finished.out << finished.err;
      EXPECT_EQ(finished.err.find("starting it again"), std::string::npos) << finished.err;
      EXPECT_FALSE(fs::exists(path("new"))) << settings << again;
    }
  }
}

TEST_F(WrongCalls, NothingIsLeftOfARunThatCouldNotBegin) {
  const std::string empty = data_.write("empty.txt", "");
  const std::string table = data_.write("a.csv", "x,kind\n1,a\nzwei,b\n");
  const std::vector<std::pair<std::string, int>> cases = {
      {"--model gpt -n 2 --data " + empty, 2},
      {"--model mlp -n 2 --data " + table, 2},
      {"--model mlp -n 1 --folds 2 --data " + table, 2},
      {gpt() + "--vocabulary 10", 2},
      {gpt() + "--weights-from " + table, 2},
      {gpt() + "--width 131072", 2},  // 200 GB in one tensor
      {gpt() + "--width 131072 -n 2 --zero 3", 2},
      {gpt() + "--width 131072 --folds 2", 2},
      {mlp() + "--batch 1000000 --micro-batch fixed", 2},
      {gpt() + "--nnodes 2 --node-rank 0 --rendezvous nowhere.invalid:1", 2}};
  for (const auto& [settings, code] : cases) {
    const Finished finished = train("new/inner/run", "--steps 1 " + settings);
    EXPECT_EQ(finished.code, code) << settings << finished.out << finished.err;
    EXPECT_FALSE(fs::exists(path("new"))) << settings;
  }
  // What was there stays.
  fs::create_directories(path("old"));
  EXPECT_EQ(train("old/run", "--steps 1 --model gpt --data " + empty).code, 2);
  EXPECT_TRUE(fs::is_empty(path("old")));
}

// No rank has ever begun, so that there is nothing to resume either.
TEST_F(WrongCalls, NothingIsLeftOfAJobWhoseMachinesDidNotMeet) {
  const auto settings = [&](const std::string& timeout) {
    return gpt() + "--steps 1 --nnodes 2 --node-rank 0 --timeout " + timeout +
           " --rendezvous 127.0.0.1:" + std::to_string(testing::free_port());
  };
  EXPECT_EQ(train("new/inner/run", settings("1")).code, 4);
  EXPECT_FALSE(fs::exists(path("new")));
  fs::create_directories(path("old"));
  EXPECT_EQ(train("old", settings("1")).code, 4);
  EXPECT_TRUE(fs::is_empty(path("old")));
  testing::Program program(command("new/run", settings("60")));
  ASSERT_TRUE(testing::comes_true([&] { return fs::exists(path("new/run/logs")); }));
  kill(program.pid(), SIGTERM);
  EXPECT_EQ(program.wait().code, 128 + SIGTERM);
  EXPECT_FALSE(fs::exists(path("new")));
}

// As rank 0 finds a folder that its launcher took for free: another run is in it by now.
TEST_F(WrongCalls, ARefusalTakesNothingOfARunThatIsThere) {
  const std::string table = data_.write("a.csv", "x,kind\n1,a\nzwei,b\n");
  const auto refused = [&](const std::string& run, int folds, const std::string& part) {
    data_.write(run + "/config.json", "{}");
    const testing::Json settings = {{"model", "mlp"},
                                    {"data", table},
                                    {"run", path(run)},
                                    {"ranks", 1},
                                    {"threads", 1},
                                    {"steps", 1},
                                    {"folds", folds}};
    const std::string file = data_.write("settings.json", settings.dump());
    const Finished finished =
        run_program({trireme_binary() + "-worker", "--for=" TRIREME_VERSION, "train"},
                    {std::string(kEnvTrainSettings) + "=" + file});
    EXPECT_EQ(finished.code, 2) << finished.err;
    expect_parts(finished.err, {part});
    return !fs::exists(path(run) + "/config.json");
  };
  fs::create_directories(path("new"));
  EXPECT_TRUE(refused("new", 0, "line 3")) << "not a run yet";
  EXPECT_TRUE(refused("new", 2, "line 3")) << "not a run yet";
  fs::create_directories(path("begun"));
  data_.write("begun/metrics.jsonl", "");
  EXPECT_FALSE(refused("begun", 0, "line 3"));
  fs::create_directories(path("folds/fold-1"));
  EXPECT_FALSE(refused("folds", 2, "line 3"));
  fs::create_directories(path("locked"));
  const FolderLock lock(path("locked"));
  EXPECT_FALSE(refused("locked", 0, "another job"));
}

// The data has become bad since it began.
TEST_F(WrongCalls, ARefusalAfterALossTakesNothingOfTheRun) {
  std::string rows = "x,kind\n";
  for (int i = 0; i < 40; ++i) {
    rows += std::to_string(i) + (i % 2 == 0 ? ",a\n" : ",b\n");
  }
  const std::string table = data_.write("a.csv", rows);
  testing::Program program(command("run",
                                   "--model mlp --hidden 4 --batch 4 --steps 1000000 --log-every 1 "
                                   "-n 2 --restart 5 --data " +
                                       table));
  ASSERT_TRUE(program.wait_for_output("step 10/"));
  fs::rename(data_.write("bad.csv", rows + "zwei,b\n"), table);  // what is mapped stays
  kill(program.children()[1], SIGKILL);
  const Finished finished = program.wait();
  EXPECT_EQ(finished.code, 2) << finished.err;
  expect_parts(finished.err, {"starting it again (4 restarts left)", "line 42"});
  EXPECT_EQ(finished.err.find("3 restarts left"), std::string::npos) << finished.err;
  for (const char* name : {"config.json", "metrics.jsonl", "logs"}) {
    EXPECT_TRUE(fs::exists(path("run") + "/" + name)) << name;
  }
}

// Whatever the model: there is nothing that another one would take.
TEST_F(WrongCalls, AFolderWithoutDataIsNoMatterOfTheModel) {
  fs::create_directories(path("empty"));
  for (const std::string model : {"gpt", "mlp", "convnet", "wide"}) {
    const Finished finished =
        train("new", "-n 1 --steps 1 --model " + model + " --data " + path("empty"));
    EXPECT_EQ(finished.code, 2) << finished.out << finished.err;
    expect_parts(finished.err, {"train-images-idx3-ubyte", "*.txt", "found neither"});
    EXPECT_EQ(finished.err.find("--model"), std::string::npos) << finished.err;
    EXPECT_FALSE(fs::exists(path("new")));
  }
}

// One rank has nobody to divide the model with.
TEST_F(WrongCalls, AModelThatIsTooLargeForOneRankIsNotDivided) {
  const auto refused = [&](const std::string& settings) {
    const Finished finished = train("new", "--steps 1 " + settings);
    EXPECT_EQ(finished.code, 2) << finished.out << finished.err;
    return finished.err;
  };
  const std::string alone = refused(gpt() + "--width 131072 -n 1");
  expect_parts(alone, {"use a smaller model, or --zero 3 with more ranks or machines"});
  EXPECT_EQ(alone.find("ocabulary"), std::string::npos) << alone;
  expect_parts(refused(gpt() + "--width 131072 -n 2"), {"use --zero 3, fewer ranks, or a smaller"});
  // The tokens of a file, read as another type.
  std::vector<std::uint32_t> tokens(3000, 7);
  tokens.back() = 3'000'000'000;
  const std::string file = data_.write("a.u32", testing::token_bytes(tokens));
  expect_parts(refused(gpt() + "-n 1 --data " + file),
               {"The vocabulary is 3000000001", "byte order"});
}

TEST_F(WrongCalls, WhatCannotBeWrittenIsSaid) {
  const Finished job = in_shell("run -n 2 -- sh -c 'echo hello; sleep 60' > /dev/full");
  EXPECT_EQ(job.code, 3);
  expect_parts(job.err, {"cannot write its output: No space left on device"});
  EXPECT_EQ(in_shell("run -n 1 -- yes | head -1; exit ${PIPESTATUS[0]}").code, 128 + SIGPIPE);
  train_well("run", gpt() + "--steps 1");
  // It does not go on for nobody.
  const Finished text = in_shell("sample --run " + path("run") + " --length 1000000 > /dev/full");
  EXPECT_EQ(text.code, 1);
  expect_parts(text.err, {"standard output could not be written"});
}

TEST_F(WrongCalls, FoldsAreNamedWhereACrossValidatedRunHasNoWeights) {
  train_well("folds", gpt() + "--steps 1 --folds 2");
  for (const char* which : {"auto", "best"}) {
    expect_refusal({"sample", "--run", path("folds"), "--weights", which},
                   {"was cross-validated", path("folds") + "/fold-1"});
  }
}

TEST_F(WrongCalls, RanksOfOurOwnDoNotUseMpi) {
  expect_refusal(words("run -n 2 --backend mpi -- true"), {"--backend: expected", "mpirun"});
  EXPECT_EQ(train("run", gpt() + "--steps 1 --backend mpi").code, 2);
  EXPECT_FALSE(fs::exists(path("run")));
}

TEST_F(WrongCalls, WhatIsNoDrillIsSaidInOurWords) {
  for (const char* text : {"", "{}", "[]", "{\"faults\":[{}]}"}) {
    const std::string file = data_.write("drill.json", text);
    for (const Words& call : {Words{"drill", file}, Words{"drill", file, "--json"}}) {
      expect_refusal(call, {"expected what a drill has recorded, found: "});
    }
    EXPECT_EQ(run_program({trireme_binary(), "drill", file}).err.find("json."), std::string::npos);
  }
}

TEST_F(WrongCalls, NoModelHasThatManyLayers) {
  expect_refusal(words("train --model gpt --layers 99999999"), {"--layers: expected", "10000"});
}

}  // namespace
}  // namespace trireme::wrong_calls_test
