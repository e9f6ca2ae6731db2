// Not a test of anything: in one program with made_up_tests.cc, one of whose suites goes on here.

#include <gtest/gtest.h>

namespace {

TEST(MadeUp, PassesElsewhere) {}

TEST(MadeUpOthers, Passes) {}

}  // namespace
