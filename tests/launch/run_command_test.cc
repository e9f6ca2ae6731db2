// `trireme run` as its users see it.

#include <algorithm>
#include <fstream>
#include <sstream>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/processes.h"
#include "trireme/core/error.h"
#include "trireme/core/machine.h"

namespace trireme {
namespace {

using testing::Finished;
using testing::Program;
using testing::run_program;
using testing::test_binary;
using testing::trireme_binary;

Finished run(std::vector<std::string> arguments, std::vector<std::string> environment = {}) {
  arguments.insert(arguments.begin(), {trireme_binary(), "run"});
  return run_program(std::move(arguments), std::move(environment));
}

Finished run_script(int ranks, const std::string& script) {
  return run({"-n", std::to_string(ranks), "--", "/bin/sh", "-c", script});
}

void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in: " << text;
  }
}

TEST(RunCommand, StartsRanksThatFindEachOther) {
  const Finished result = run({"-n", "3", "--", test_binary("worker"), "hello"});
  EXPECT_EQ(result.code, 0) << result.err;
  expect_parts(result.out,
               {"[0] rank 0 of 3 by trireme run, sum 3", "[1] rank 1 of 3", "[2] rank 2 of 3"});
}

TEST(RunCommand, RanksOfOneMachineCanGoOverTheNetwork) {
  for (const int ranks : {1, 3}) {
    const Finished result = run(
        {"-n", std::to_string(ranks), "--backend", "ucx", "--", test_binary("worker"), "hello"});
    EXPECT_EQ(result.code, 0) << result.err;
    for (int rank = 0; rank < ranks; ++rank) {
      expect_parts(result.out,
                   {detail::concat("[", rank, "] rank ", rank, " of ", ranks, " by trireme run")});
    }
  }
}

TEST(RunCommand, TellsProgramsWrittenForTorchrunTheirPlace) {
  const Finished result = run_script(2,
                                     "echo $RANK of $WORLD_SIZE, local $LOCAL_RANK of "
                                     "$LOCAL_WORLD_SIZE at $MASTER_ADDR:$MASTER_PORT");
  EXPECT_EQ(result.code, 0) << result.err;
  expect_parts(
      result.out,
      {"[0] 0 of 2, local 0 of 2 at 127.0.0.1:", "[1] 1 of 2, local 1 of 2 at 127.0.0.1:"});
  // One port for all, which a program can open.
  const auto port_of = [&](const std::string& rank) {
    const std::string after = result.out.substr(result.out.find(rank));
    return after.substr(0, after.find('\n')).substr(after.find("127.0.0.1:") + 10);
  };
  EXPECT_EQ(port_of("[0]"), port_of("[1]"));
  EXPECT_GT(std::stoi(port_of("[0]")), 1023);
}

TEST(RunCommand, PassesArgumentsAsTheyAre) {
  const Finished result =
      run({"-n", "1", "--", "printf", "%s|", "-n", "9", "--", "--help", "a b", ""});
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.out, "[0] -n|9|--|--help|a b||\n");
  EXPECT_EQ(run({"-n", "1", "echo", "no", "--dashes", "-n", "2"}).out, "[0] no --dashes -n 2\n");
}

TEST(RunCommand, RefusesWrongUsageWithCodeTwo) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"-n", "0", "--", "true"}, "found \"0\""},
      {{"-n", "-3", "--", "true"}, "found \"-3\""},
      {{"-n", "two", "--", "true"}, "found \"two\""},
      {{"-n", "1.5", "--", "true"}, "found \"1.5\""},
      {{"-n", "99999999999", "--", "true"}, "found \"99999999999\""},
      {{"--", "true"}, "-n"},
      {{"-n", "2"}, "expected a program"},
      {{"-n", "2", "--"}, "expected a program"},
      {{"-n", "2", "--", "no-such-program-anywhere"}, "no-such-program-anywhere"},
      {{"-n", "2", "--", "/no/such/program"}, "does not exist"},
      {{"-n", "2", "--", "/etc/passwd"}, "not a file that may be executed"},
      {{"-n", "2", "--", "/etc"}, "not a file that may be executed"},
      {{"-n", "2", "--bogus", "--", "true"}, "--bogus"},
      {{"-n", "2", "--threads", "0", "--", "true"}, "--threads"},
      {{"-n", "2", "--timeout", "never", "--", "true"}, "\"never\""},
      {{"-n", "2", "--timeout", "0", "--", "true"}, "\"0\""},
      {{"-n", "2", "--log-dir", "/proc/nothing/here", "--", "true"}, "/proc/nothing/here"},
  };
  for (const auto& [arguments, part] : cases) {
    const Finished result = run(arguments);
    EXPECT_EQ(result.code, 2) << part << ": " << result.err;
    expect_parts(result.err, {part});
  }
  EXPECT_EQ(run_program({trireme_binary()}).code, 2);
  EXPECT_EQ(run_program({trireme_binary(), "sail"}).code, 2);
  EXPECT_EQ(run_program({trireme_binary(), "--help"}).code, 0);
  EXPECT_EQ(run_program({trireme_binary(), "run", "--help"}).code, 0);
}

// A million ranks: 8 TiB for what each takes at least. Never fewer than no machine has room for.
TEST(RunCommand, RefusesMoreRanksThanTheMachineHasRoomFor) {
  ASSERT_LT(total_memory_bytes(), std::uint64_t{1} << 43) << "it would start that many";
  const Finished result = run({"-n", "1048576", "--", "true"});
  EXPECT_EQ(result.code, 2) << result.err;
  expect_parts(result.err,
               {"-n: 1048576 ranks need at least 8192 GiB of memory (8 MiB each)",
                "on this machine, limits",
                "start at most "});
}

TEST(RunCommand, NamesTheNearestFlagAndItsOwnHelp) {
  const std::vector<std::pair<std::vector<std::string>, std::vector<std::string>>> cases = {
      {{"run", "-n", "2", "--log-dri", "x", "--", "true"},
       {"flags of trireme run, found --log-dri; did you mean --log-dir?",
        "\"trireme run --help\""}},
      {{"run", "-n", "2", "--nobind", "true"}, {"found --nobind; did you mean --no-bind?"}},
      {{"doctor", "--timeuot=3"},
       {"found --timeuot; did you mean --timeout?", "trireme doctor --"}},
      {{"compare", "a", "b", "--jsno", "x"},
       {"flags of trireme compare, found --jsno; did you mean --json?"}},
      {{"ckpt", "shwo", "x"}, {"found \"shwo\"; did you mean show?", "\"trireme ckpt --help\""}},
      {{"ckpt", "show", "x", "--stpe", "3"},
       {"flags of trireme ckpt show, found --stpe; did you mean --step?",
        "\"trireme ckpt show --help\""}},
      {{"compare", "a", "b", "c"}, {"nothing more for trireme compare, found \"c\""}},
      {{}, {"expected a command (run, ", "found none", "\"trireme --help\""}},
      {{"--vresion"}, {"flags of trireme, found --vresion; did you mean --version?"}},
      {{"run", "-n", "0", "--", "true"}, {"found \"0\"", "\"trireme run --help\""}},
  };
  for (const auto& [arguments, parts] : cases) {
    std::vector<std::string> words = arguments;
    words.insert(words.begin(), trireme_binary());
    const Finished result = run_program(words);
    EXPECT_EQ(result.code, 2) << result.err;
    expect_parts(result.err, parts);
  }
}

TEST(RunCommand, EveryMessageBeginsWithTheNameOfTheProgram) {
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"run"},
                                                    {"run", "-n", "1"},
                                                    {"run", "-n", "1", "--", "false"},
                                                    {"train", "--model", "none"},
                                                    {"predict"},
                                                    {"sample"},
                                                    {"ckpt", "ls", "/nowhere"}}) {
    std::vector<std::string> words = arguments;
    words.insert(words.begin(), trireme_binary());
    const Finished result = run_program(words);
    EXPECT_NE(result.code, 0);
    EXPECT_TRUE(result.err.starts_with("trireme: ")) << result.err;
  }
}

// In the same words whoever is asked.
TEST(RunCommand, NamesTheBackendsThatThereAre) {
  for (const std::vector<std::string>& command : {std::vector<std::string>{"run", "-n", "2"},
                                                  {"train", "-n", "2"},
                                                  {"doctor", "-n", "2"},
                                                  {"bench", "collectives", "-n", "2"}}) {
    std::vector<std::string> words = command;
    words.insert(words.begin(), trireme_binary());
    words.insert(words.end(), {"--backend", "nccl"});
    if (command.front() == "run") {
      words.insert(words.end(), {"--", "true"});
    }
    const Finished result = run_program(words);
    EXPECT_EQ(result.code, 2) << result.err;
    expect_parts(result.err,
                 {"trireme: --backend: expected auto, shm, ucx or mpi, found \"nccl\""});
  }
}

TEST(RunCommand, SaysThatAFileIsNoProgram) {
  const testing::TemporaryFolder folder;
  const std::string path = folder.path() + "/broken";
  std::ofstream(path) << "this is no program\n";
  EXPECT_EQ(run_program({"chmod", "+x", path}).code, 0);
  const Finished result = run({"-n", "2", "--", path});
  EXPECT_EQ(result.code, 2);
  expect_parts(result.err, {"could not be started", "broken"});
}

TEST(RunCommand, NamesTheFirstRankThatFailsWithItsLastWords) {
  const Finished result = run_script(
      3, "if [ $TRIREME_RANK = 1 ]; then echo 'the disk is on fire' >&2; exit 7; fi; sleep 100");
  EXPECT_EQ(result.code, 3);
  expect_parts(result.err,
               {"rank 1 of 3", "exit code 7", "last words of rank 1", "the disk is on fire"});
}

// They are the lines right above.
TEST(RunCommand, DoesNotRepeatTheLastWordsOfARankThatIsAlone) {
  const Finished result = run_script(1, "echo 'the disk is on fire' >&2; exit 7");
  EXPECT_EQ(result.code, 3);
  expect_parts(result.err, {"the disk is on fire", "rank 0 of 1", "exit code 7"});
  EXPECT_EQ(result.err.find("last words"), std::string::npos) << result.err;
}

TEST(RunCommand, SaysWhatInterfacesAreForOnOneMachine) {
  const Finished none = run({"-n", "2", "--interfaces", "foo9", "--", "true"});
  EXPECT_EQ(none.code, 2);
  expect_parts(none.err, {"--interfaces", "lo", "found \"foo9\""});
  const Finished unused = run({"-n", "2", "--interfaces", "lo", "--", "true"});
  EXPECT_EQ(unused.code, 0);
  expect_parts(unused.err, {"--interfaces has no effect", "one machine"});
  const Finished alone = run({"-n", "1", "--rendezvous", "a:1", "--", "true"});
  expect_parts(alone.err, {"--rendezvous has no effect", "--nnodes"});
}

TEST(RunCommand, SaysWhatHasNoEffectOnOneMachine) {
  const Finished unused = run(
      {"-n", "1", "--encrypt", "--checksums", "--restart", "1", "--redundancy", "2", "--", "true"});
  EXPECT_EQ(unused.code, 0);
  expect_parts(
      unused.err,
      {"--encrypt has no effect", "--checksums has no effect", "--redundancy has no effect"});
  EXPECT_EQ(run({"-n", "1", "--restart", "1", "--", "true"}).err, "");
}

TEST(RunCommand, SaysThatTheRestartsAreUsedUp) {
  const Finished result = run({"-n", "2", "--restart", "2", "--", "/bin/sh", "-c", "kill -9 $$"});
  EXPECT_EQ(result.code, 3);
  expect_parts(result.err, {"where the job needs 2", "no restart is left (--restart)"});
  EXPECT_EQ(result.err.find("--elastic"), std::string::npos) << result.err;
}

TEST(RunCommand, NamesTheSignalThatKilledARank) {
  const Finished result =
      run_script(2, "if [ $TRIREME_RANK = 0 ]; then kill -SEGV $$; fi; sleep 100");
  EXPECT_EQ(result.code, 3);
  expect_parts(result.err, {"rank 0 of 2", "signal 11"});
}

TEST(RunCommand, BlamesTheRankThatThrewAndNotThoseThatMissIt) {
  const Finished result = run({"-n", "3", "--", test_binary("worker"), "throw"});
  EXPECT_EQ(result.code, 3);
  expect_parts(result.err, {"trireme: rank 1 of 3", "exit code 6", "rank 1 has had enough"});
}

TEST(RunCommand, SaysThatTheRanksDidNotFindEachOther) {
  const Finished result =
      run({"-n",
           "2",
           "--timeout",
           "0.5",
           "--",
           "/bin/sh",
           "-c",
           "if [ $TRIREME_RANK = 0 ]; then exec " + test_binary("worker") + "; fi; sleep 100"});
  EXPECT_EQ(result.code, 4) << result.err;
  expect_parts(result.err, {"rendezvous timed out", "missing: 1"});
}

TEST(RunCommand, NeverMixesLines) {
  const Finished result = run_script(4,
                                     "i=0; while [ $i -lt 200 ]; do printf 'aaaaaaaaaa'; printf "
                                     "'bbbbbbbbbb\\n'; i=$((i+1)); done");
  std::istringstream lines(result.out);
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    EXPECT_EQ(line.substr(3), " aaaaaaaaaabbbbbbbbbb");
    EXPECT_EQ(line[0], '[');
  }
  EXPECT_EQ(count, 800);
}

TEST(RunCommand, KeepsTheTwoStreamsApartAndColourOffFiles) {
  const Finished result = run_script(1, "echo out; echo err >&2");
  EXPECT_EQ(result.out, "[0] out\n");
  EXPECT_EQ(result.err, "[0] err\n");
}

TEST(RunCommand, WritesALogForEachRank) {
  const testing::TemporaryFolder folder;
  const std::string logs = folder.path() + "/deep/logs";
  const Finished result =
      run({"-n", "2", "--log-dir", logs, "--", "/bin/sh", "-c", "echo I am $TRIREME_RANK"});
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(testing::read_file(logs + "/rank-0.log"), "I am 0\n");
  EXPECT_EQ(testing::read_file(logs + "/rank-1.log"), "I am 1\n");
}

TEST(RunCommand, GivesEachRankItsThreads) {
  const Finished result =
      run({"-n", "1", "--threads", "3", "--", test_binary("worker")}, {"OMP_NUM_THREADS=9"});
  expect_parts(result.out, {"threads 3"});
  expect_parts(run({"-n", "1", "--", test_binary("worker")}, {"OMP_NUM_THREADS=9"}).out,
               {"threads 9"});
  // More ranks than processors: one each.
  const std::string last = std::to_string(allowed_cpus().size());
  const Finished many = run({"-n",
                             std::to_string(allowed_cpus().size() + 1),
                             "--",
                             "/bin/sh",
                             "-c",
                             "echo $OMP_NUM_THREADS"},
                            {"OMP_NUM_THREADS="});
  EXPECT_EQ(many.code, 0);
  expect_parts(many.out, {"[" + last + "] 1\n"});
}

// The program begins after them, and not one word later.
TEST(RunCommand, SwitchesTakeNoValue) {
  for (const std::string flag : {"--encrypt", "--checksums", "--no-bind"}) {
    const auto done = run({flag, "-n", "2", "--", "/bin/echo", "hello"});
    EXPECT_EQ(done.code, 0) << flag << done.err;
    expect_parts(done.out, {"[0] hello\n", "[1] hello\n"});
  }
}

// A rank for every processor: each has one, and not all of them; unless it was asked not to.
TEST(RunCommand, GivesEachRankItsProcessors) {
  const std::string ranks = std::to_string(allowed_cpus().size());
  expect_parts(run({"-n", ranks, "--no-bind", "--", test_binary("worker")}).out,
               {"processors " + ranks + "\n"});
  if (cpu_quota() != 0) {
    GTEST_SKIP() << "with a quota of processor time ranks are not bound";
  }
  expect_parts(run({"-n", ranks, "--", test_binary("worker")}).out, {"processors 1\n"});
}

TEST(RunCommand, GivesRankZeroItsStandardInput) {
  const Finished result = run_program(
      {"/bin/sh", "-c", "echo from outside | " + trireme_binary() + " run -n 2 -- cat"});
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.out, "[0] from outside\n");
}

TEST(RunCommand, ForwardsSignalsAndEndsWithThem) {
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    const std::string mark = testing::unique_mark();
    Program program(
        {trireme_binary(),
         "run",
         "-n",
         "2",
         "--",
         "/bin/sh",
         "-c",
         "trap 'echo caught; exit 0' INT TERM HUP; echo ready; while :; do sleep 0.05; done"},
        {mark});
    ASSERT_TRUE(program.wait_for_output("ready", 2));
    kill(program.pid(), number);
    const Finished result = program.wait();
    EXPECT_EQ(result.code, 128 + number);
    expect_parts(result.out, {"[0] caught", "[1] caught"});
    EXPECT_TRUE(testing::processes_with(mark).empty());
  }
}

TEST(RunCommand, EndsRanksThatIgnoreSignals) {
  const std::string mark = testing::unique_mark();
  Program program({trireme_binary(),
                   "run",
                   "-n",
                   "2",
                   "--",
                   "/bin/sh",
                   "-c",
                   "trap '' INT TERM; echo ready; while :; do sleep 0.05; done"},
                  {mark});
  ASSERT_TRUE(program.wait_for_output("ready", 2));
  kill(program.pid(), SIGTERM);
  EXPECT_EQ(program.wait().code, 128 + SIGTERM);
  EXPECT_TRUE(testing::processes_with(mark).empty());
}

TEST(RunCommand, NamesALogLevelThatIsNone) {
  const Finished result = run_program({trireme_binary(), "--version"}, {"TRIREME_LOG_LEVEL=loud"});
  EXPECT_EQ(result.code, 0);
  expect_parts(result.err, {"TRIREME_LOG_LEVEL", "debug, info, warning, error or off", "\"loud\""});
  EXPECT_EQ(run_program({trireme_binary(), "--version"}).err, "");
}

// GNU timeout signals the program it has started, and then its whole group.
TEST(RunCommand, TakesTwoSignalsAtOnceForOneRequest) {
  const std::string mark = testing::unique_mark();
  Program program({trireme_binary(),
                   "run",
                   "-n",
                   "2",
                   "--",
                   "/bin/sh",
                   "-c",
                   "trap 'sleep 0.5; echo saved; exit 0' TERM; echo ready; "
                   "while :; do sleep 0.05; done"},
                  {mark});
  ASSERT_TRUE(program.wait_for_output("ready", 2));
  kill(program.pid(), SIGTERM);
  run_program({"sleep", "0.02"});
  kill(program.pid(), SIGTERM);
  const Finished result = program.wait();
  EXPECT_EQ(result.code, 128 + SIGTERM);
  expect_parts(result.out, {"[0] saved", "[1] saved"});
  EXPECT_TRUE(testing::processes_with(mark).empty());
}

// The ranks would take longer than this test may.
TEST(RunCommand, KillsRanksWhenItIsAskedASecondTime) {
  const std::string mark = testing::unique_mark();
  Program program({trireme_binary(),
                   "run",
                   "-n",
                   "2",
                   "--",
                   "/bin/sh",
                   "-c",
                   "trap 'echo caught; sleep 3; echo saved; exit 0' TERM; echo ready; "
                   "while :; do sleep 0.05; done"},
                  {mark});
  ASSERT_TRUE(program.wait_for_output("ready", 2));
  kill(program.pid(), SIGTERM);
  ASSERT_TRUE(program.wait_for_output("caught", 2));
  run_program({"sleep", "1.1"});
  kill(program.pid(), SIGTERM);
  const Finished result = program.wait();
  EXPECT_EQ(result.code, 128 + SIGTERM);
  EXPECT_EQ(result.out.find("saved"), std::string::npos) << result.out;
  EXPECT_TRUE(testing::processes_with(mark).empty());
}

TEST(RunCommand, LeavesNothingOfWhatRanksStartedAndAbandoned) {
  const std::string mark = testing::unique_mark();
  Program program({trireme_binary(),
                   "run",
                   "-n",
                   "2",
                   "--",
                   "/bin/sh",
                   "-c",
                   "(setsid sleep 100 >/dev/null 2>&1 &) ; sleep 100 & echo started"},
                  {mark});
  const Finished result = program.wait();
  EXPECT_EQ(result.code, 0);
  expect_parts(result.out, {"[0] started", "[1] started"});
  EXPECT_TRUE(testing::processes_with(mark).empty());
}

TEST(RunCommand, TakesTheRanksWithItWhenItIsKilled) {
  const std::string mark = testing::unique_mark();
  Program program({trireme_binary(), "run", "-n", "3", "--", test_binary("worker"), "loop"},
                  {mark});
  ASSERT_TRUE(program.wait_for_output("looping", 3));
  kill(program.pid(), SIGKILL);
  program.wait();
  for (int i = 0; i < 100 && !testing::processes_with(mark).empty(); ++i) {
    run_program({"sleep", "0.02"});
  }
  EXPECT_TRUE(testing::processes_with(mark).empty());
}

TEST(RunCommand, EndsTheJobWhenNobodyReadsItsOutput) {
  const std::string mark = testing::unique_mark();
  const Finished result =
      run_program({"/bin/sh", "-c", trireme_binary() + " run -n 2 -- yes | head -n 3"}, {mark});
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), 'y'), 3) << result.out << result.err;
  EXPECT_TRUE(testing::processes_with(mark).empty());
}

TEST(RunCommand, HearsSignalsWhileARankNeverStopsWriting) {
  Program program({"/bin/sh", "-c", "exec " + trireme_binary() + " run -n 2 -- yes > /dev/null"});
  ASSERT_TRUE(program.wait_for_children("yes", 2));
  kill(program.pid(), SIGTERM);
  const Finished result = program.wait();
  EXPECT_EQ(result.code, 128 + SIGTERM);
  expect_parts(result.err, {"stopped by signal 15"});  // it was there, and not just ended
}

TEST(RunCommand, HearsSignalsWhileNobodyReadsItsOutput) {
  const testing::TemporaryFolder folder;
  const std::string pipe = folder.path() + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const int reader = open(pipe.c_str(), O_RDWR);  // open, and never read
  Program program({"/bin/sh", "-c", "exec " + trireme_binary() + " run -n 2 -- yes > " + pipe});
  ASSERT_TRUE(program.wait_for_children("yes", 2));
  kill(program.pid(), SIGTERM);
  const Finished result = program.wait();
  EXPECT_EQ(result.code, 128 + SIGTERM);
  expect_parts(result.err, {"stopped by signal 15"});  // it was there, and not just ended
  close(reader);
}

TEST(RunCommand, LeavesIgnoredSignalsIgnored) {
  Program program(
      {"/bin/sh", "-c", "trap '' HUP; exec " + trireme_binary() + " run -n 2 -- sleep 2"});
  ASSERT_TRUE(program.wait_for_children("sleep", 2));
  kill(program.pid(), SIGHUP);
  EXPECT_EQ(program.wait().code, 0);
}

TEST(RunCommand, EndsARankThatHasMovedToAnotherProcessGroup) {
  const std::string mark = testing::unique_mark();
  Program program(
      {trireme_binary(),
       "run",
       "-n",
       "1",
       "--",
       "python3",
       "-c",
       "import os, time\npid = os.fork()\nif pid == 0:\n  os.setpgid(0, 0); time.sleep(100)\n"
       "while os.getpgid(pid) != pid: time.sleep(0.01)\n"
       "os.setpgid(0, pid); print('moved', flush=True); time.sleep(100)"},
      {mark});
  ASSERT_TRUE(program.wait_for_output("moved"));
  kill(program.pid(), SIGTERM);
  EXPECT_EQ(program.wait().code, 128 + SIGTERM);
  EXPECT_TRUE(testing::processes_with(mark).empty());
}

TEST(RunCommand, WorksWithStandardStreamsClosed) {
  const Finished result = run_program(
      {"/bin/sh", "-c", trireme_binary() + " run -n 2 -- sh -c 'echo err >&2; echo out' <&- 2>&-"});
  EXPECT_EQ(result.code, 0);
  expect_parts(result.out, {"[0] out", "[1] out"});
}

TEST(RunCommand, TakesWrappedRanksWithItWhenItIsKilled) {
  const std::string mark = testing::unique_mark();
  Program program({trireme_binary(),
                   "run",
                   "-n",
                   "2",
                   "--",
                   "/bin/sh",
                   "-c",
                   test_binary("worker") + " loop; true"},
                  {mark});
  ASSERT_TRUE(program.wait_for_output("looping", 2));
  kill(program.pid(), SIGKILL);
  program.wait();
  for (int i = 0; i < 100 && !testing::processes_with(mark).empty(); ++i) {
    run_program({"sleep", "0.02"});
  }
  EXPECT_TRUE(testing::processes_with(mark).empty());
}

TEST(RunCommand, TakesAVeryLongTimeout) {
  EXPECT_EQ(run({"-n", "2", "--timeout", "1e15", "--", test_binary("worker")}).code, 0);
}

TEST(Program, NamesTheNearestCommand) {
  const testing::Finished finished =
      testing::run_program({testing::trireme_binary(), "trian", "--steps", "3"});
  EXPECT_EQ(finished.code, 2);
  EXPECT_NE(finished.err.find("\"trian\"; did you mean train?"), std::string::npos) << finished.err;
}

}  // namespace
}  // namespace trireme
