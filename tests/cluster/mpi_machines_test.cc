// Ranks that mpirun starts on two machines: the tests of the collectives there, over the network.

#include <gtest/gtest.h>

#include "support/machines.h"
#include "support/processes.h"

namespace trireme {
namespace {

using testing::Finished;
using testing::Machines;
using testing::run_program;
using testing::test_binary;

class MpiMachinesTest : public ::testing::TestWithParam<const char*> {};

TEST_P(MpiMachinesTest, GivesTheReferenceBits) {
  if (const auto reason = Machines::unavailable()) {
    GTEST_SKIP() << *reason;
  }
  if (run_program({"sh", "-c", "command -v mpirun.openmpi"}).code != 0) {
    GTEST_SKIP() << "there is no mpirun.openmpi here (scripts/setup installs it)";
  }
  const Machines machines(2);
  const Finished result =
      machines
          .run(0,
               {"mpirun.openmpi",
                "--allow-run-as-root",
                "--mca",
                "plm_rsh_agent",
                Machines::script() + " rsh",
                // Machines that are namespaces of one host look like one to MPI.
                "--mca",
                "pml",
                "ob1",
                "--mca",
                "btl",
                "tcp,self",
                "--mca",
                "btl_tcp_if_include",
                "eth0",
                "-H",
                machines.address(0) + ":1," + machines.address(1) + ":1",
                "-n",
                "2",
                "-x",
                "TRIREME_TEST_LAYOUT=external",
                "-x",
                "TRIREME_BACKEND=mpi",
                test_binary(GetParam()),
                "--gtest_filter=-SharedBuffer.*"})
          ->wait(std::chrono::seconds(60));
  EXPECT_EQ(result.code, 0) << result.out << result.err;
  // Both ranks have been there, and their data went over the wire.
  const auto first = result.out.find("[  PASSED  ]");
  ASSERT_NE(first, std::string::npos) << result.out;
  EXPECT_NE(result.out.find("[  PASSED  ]", first + 1), std::string::npos) << result.out;
  for (const int machine : {0, 1}) {
    EXPECT_GT(machines.bytes(machine, 0).sent, 4 << 20);
    EXPECT_LT(machines.bytes(machine, 1).sent, 1 << 20);
  }
}

INSTANTIATE_TEST_SUITE_P(Tests,
                         MpiMachinesTest,
                         ::testing::Values("collectives_test", "sum_terms_test"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace trireme
