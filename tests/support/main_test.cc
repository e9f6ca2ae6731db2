// What a program of tests says of itself: success only where every test that was asked for has run.

#include <filesystem>

#include <gtest/gtest.h>

#include "support/processes.h"

namespace trireme {
namespace {

using testing::Finished;

constexpr int kSkipped = 77;

Finished run(const std::string& filter, const std::string& program = "made_up_tests") {
  return testing::run_program({testing::test_binary(program), "--gtest_filter=" + filter});
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Main, TellsATestThatPassedFromOneThatFailed) {
  EXPECT_EQ(run("MadeUp.Passes").code, 0);
  EXPECT_EQ(run("MadeUp.Passes:MadeUp.Fails").code, 1);
}

TEST(Main, ASkipIsNoSuccess) {
  const Finished result = run("MadeUp.IsSkipped:MadeUp.Passes");
  EXPECT_EQ(result.code, kSkipped);
  EXPECT_TRUE(has(result.out, "\nnot run: MadeUp.IsSkipped: the moon is not full\n")) << result.out;
}

TEST(Main, ASkipHidesNoFailure) {
  EXPECT_EQ(run("MadeUp.IsSkipped:MadeUp.Fails").code, 1);
  EXPECT_EQ(run("MadeUp.FailsAndIsSkipped").code, 1);
}

TEST(Main, AFilterThatFitsNothingIsAFailure) {
  for (const char* filter : {"MadeUp.HadThisNameOnce", "-*", "MadeUp.Passes:MadeUp.HadThis*"}) {
    const Finished result = run(filter);
    EXPECT_EQ(result.code, 1) << filter;
    EXPECT_TRUE(has(result.out, "FAILED: no test ")) << result.out;
  }
}

TEST(Main, AnEarlyEndIsAFailure) {
  const Finished result = run("MadeUp.Passes:MadeUp.LeavesEarly");
  EXPECT_EQ(result.code, 1);
  EXPECT_TRUE(has(result.out, "left before its tests had ended")) << result.out;
}

TEST(Main, ADisabledTestIsAFailure) {
  EXPECT_EQ(run("MadeUp.Passes:MadeUp.DISABLED_*").code, 1);
}

// By the name of a file, a program of several has the tests of that file: there are others that
// fail.
TEST(Main, EachFileOfAProgramHasItsOwnTests) {
  for (const char* filter : {"*", "-MadeUp.HadThisNameOnce", "MadeUp.Passes*:MadeUpOthers.*"}) {
    const Finished result = run(filter, "made_up_others");
    EXPECT_EQ(result.code, 0) << result.out;
    EXPECT_TRUE(has(result.out, "[  PASSED  ] 2 tests.")) << result.out;
  }
  const Finished of_another_file = run("MadeUp.Passes", "made_up_others");
  EXPECT_EQ(of_another_file.code, 1);
  EXPECT_TRUE(has(of_another_file.out, "FAILED: no test is called MadeUp.Passes\n"))
      << of_another_file.out;
}

TEST(Main, AProgramOfSeveralFilesHasTheTestsOfAll) {
  const Finished result = run("*.Passes*", "made_up_programs");
  EXPECT_EQ(result.code, 0) << result.out;
  EXPECT_TRUE(has(result.out, "[  PASSED  ] 3 tests.")) << result.out;
}

TEST(Main, ANameThatNoFileHasIsAFailure) {
  const testing::TemporaryFolder folder;
  const std::string program = folder.path() + "/had_this_name_once";
  std::filesystem::create_symlink(testing::test_binary("made_up_programs"), program);
  const Finished result = testing::run_program({program});
  EXPECT_EQ(result.code, 1);
  EXPECT_TRUE(has(result.out, "FAILED: no test ran")) << result.out;
}

// Where all tests are skipped before they begin: nothing says so but what the program exits with.
TEST(Main, ALayoutThatCannotBeHadIsNoSuccess) {
  const testing::TemporaryFolder programs;  // without those that make machines
  for (const char* name : {"bash", "id"}) {
    std::filesystem::create_symlink(std::string("/usr/bin/") + name, programs.path() + "/" + name);
  }
  const Finished result = testing::run_program({"env",
                                                "PATH=" + programs.path(),
                                                "TRIREME_TEST_LAYOUT=machines:2",
                                                testing::test_binary("made_up_tests"),
                                                "--gtest_filter=MadeUp.Passes"});
  EXPECT_EQ(result.code, kSkipped) << result.out << result.err;
  EXPECT_TRUE(has(result.out, "\nnot run: all of them: the layout cannot be had: ")) << result.out;
}

}  // namespace
}  // namespace trireme
