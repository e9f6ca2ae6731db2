// A state that has two forms in turn takes the memory of two, however often it is kept.

#include <gtest/gtest.h>

#include "support/processes.h"

namespace trireme {
namespace {

TEST(VaultForms, TakeTheMemoryOfTwo) {
  for (const char* steps : {"20", "21"}) {
    const testing::Finished finished = testing::run_program({testing::trireme_binary(),
                                                             "run",
                                                             "-n",
                                                             "2",
                                                             "--restart",
                                                             "3",
                                                             "--",
                                                             testing::test_binary("forms_worker"),
                                                             steps});
    EXPECT_EQ(finished.code, 0) << finished.out << finished.err;
    EXPECT_NE(finished.out.find("kept 4"), std::string::npos) << finished.out << finished.err;
  }
}

}  // namespace
}  // namespace trireme
