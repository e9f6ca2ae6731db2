#include "trireme/core/error.h"

#include <sstream>

#include <gtest/gtest.h>

#include "support/foreign_locale.h"

namespace trireme {
namespace {

TEST(Messages, HaveTheSameNumbersInEveryLocale) {
  const testing::ForeignLocale foreign;
  std::ostringstream plain;
  plain << 29500;
  ASSERT_EQ(plain.str(), "29.500") << "the locale has no effect: the test shows nothing";
  EXPECT_EQ(detail::concat("127.0.0.1:", 29500), "127.0.0.1:29500");
  EXPECT_EQ(detail::concat(1234567, " of ", -7654321L, ", ", 0.5, ", ", 12345.5),
            "1234567 of -7654321, 0.5, 12345.5");
  try {
    TRIREME_CHECK(false, "expected at most ", 100000, " ranks");
    FAIL() << "nothing was thrown";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "expected at most 100000 ranks");
  }
}

TEST(Messages, OfLibTorchEndBeforeTheirStackTrace) {
  const Error error(
      "expected one,\nfound two\nException raised from f at g.cpp:7 (most recent call first):\n"
      "frame #0: f + 0x1");
  EXPECT_EQ(detail::reason_of(error), "expected one,\nfound two");
  EXPECT_EQ(detail::reason_of(Error("found two")), "found two");
}

}  // namespace
}  // namespace trireme
