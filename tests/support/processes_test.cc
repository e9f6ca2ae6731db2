// What other tests rely on where they say that nothing is left.

#include "support/processes.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

namespace trireme {
namespace {

using testing::Program;

TEST(Processes, AreFoundByTheirMarkWhileTheyRun) {
  const std::string mark = testing::unique_mark();
  Program program({"/bin/sh", "-c", "sleep 100 & echo ready; wait"}, {mark});
  ASSERT_TRUE(program.wait_for_output("ready"));
  EXPECT_TRUE(program.wait_for_children("sleep", 1));
  EXPECT_EQ(testing::processes_with(mark).size(), 2U) << "the shell and what it has started";
  const auto children = program.children();
  ASSERT_EQ(children.size(), 1U);
  kill(children[0], SIGKILL);
  EXPECT_EQ(program.wait().code, 0);
  EXPECT_TRUE(testing::comes_true([&] { return testing::processes_with(mark).empty(); }));
}

TEST(Processes, OfAnotherMarkAreNotFound) {
  const Program program({"sleep", "100"}, {testing::unique_mark()});
  EXPECT_TRUE(testing::processes_with(testing::unique_mark()).empty());
}

}  // namespace
}  // namespace trireme
