#include "trireme/core/environment.h"

#include <cstdlib>

#include <gtest/gtest.h>

#include "trireme/core/error.h"

namespace trireme {
namespace {

TEST(Environment, ParsesWholeNumbersOnly) {
  EXPECT_EQ(parse_integer("42"), 42);
  EXPECT_EQ(parse_integer("-7"), -7);
  for (const char* text : {"", " 1", "1 ", "1x", "x", "1.0", "0x10", "99999999999999999999"}) {
    EXPECT_FALSE(parse_integer(text)) << text;
  }
}

TEST(Environment, ParsesPositiveNumbersOnly) {
  EXPECT_EQ(parse_positive("0.5"), 0.5);
  for (const char* text : {"", "0", "-1", "nan", "inf", "1s"}) {
    EXPECT_FALSE(parse_positive(text)) << text;
  }
}

TEST(Environment, NamesTheVariableItsValueAndTheRange) {
  setenv("TRIREME_TEST_NUMBER", "twelve", 1);
  try {
    env_integer("TRIREME_TEST_NUMBER", 1, 64);
    FAIL() << "nothing was thrown";
  } catch (const ConfigError& error) {
    const std::string message = error.what();
    for (const char* part : {"TRIREME_TEST_NUMBER", "\"twelve\"", "1 to 64"}) {
      EXPECT_NE(message.find(part), std::string::npos) << message;
    }
  }
  setenv("TRIREME_TEST_NUMBER", "65", 1);
  EXPECT_THROW(env_integer("TRIREME_TEST_NUMBER", 1, 64), ConfigError);
  setenv("TRIREME_TEST_NUMBER", "", 1);
  EXPECT_FALSE(env_integer("TRIREME_TEST_NUMBER", 1, 64));
}

}  // namespace
}  // namespace trireme
