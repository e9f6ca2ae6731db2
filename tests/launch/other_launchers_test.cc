// The launchers that clusters already have start Trireme's programs too.

#include <gtest/gtest.h>
#include <unistd.h>

#include "support/processes.h"
#include "trireme/core/environment.h"

namespace trireme {
namespace {

using testing::run_program;
using testing::test_binary;

TEST(OtherLaunchers, OpenMpi) {
  std::vector<std::string> command = {"mpirun", "--oversubscribe", "-n", "3"};
  if (geteuid() == 0) {
    command.emplace_back("--allow-run-as-root");
  }
  command.push_back(test_binary("worker"));
  const auto result = run_program(command);
  EXPECT_EQ(result.code, 0) << result.err;
  for (const char* rank : {"rank 0", "rank 1", "rank 2"}) {
    const std::string line = std::string(rank) + " of 3 by mpirun (Open MPI), sum 3";
    EXPECT_NE(result.out.find(line), std::string::npos) << line << ": " << result.out;
  }
}

TEST(OtherLaunchers, Torchrun) {
  const auto python = env_string("TRIREME_TORCH_PYTHON");
  if (!python) {
    GTEST_SKIP() << "no Python on this machine has torch, so there is no torchrun";
  }
  const auto result = run_program({*python,
                                   "-m",
                                   "torch.distributed.run",
                                   "--standalone",
                                   "--nproc-per-node",
                                   "2",
                                   "--no-python",
                                   test_binary("worker")});
  EXPECT_EQ(result.code, 0) << result.err;
  for (const char* rank : {"rank 0", "rank 1"}) {
    const std::string line = std::string(rank) + " of 2 by torchrun, sum 1";
    EXPECT_NE(result.out.find(line), std::string::npos) << line << ": " << result.out;
  }
}

}  // namespace
}  // namespace trireme
