#include "trireme/core/printable.h"

#include <random>

#include <gtest/gtest.h>

namespace trireme {
namespace {

using detail::printable;

TEST(Printable, LeavesTextAsItIs) {
  EXPECT_EQ(printable(""), "");
  EXPECT_EQ(printable("/home/j\xC3\xBCrgen/app --x"), "/home/j\xC3\xBCrgen/app --x");
  EXPECT_EQ(printable("\xE8\xAE\xAD\xE7\xBB\x83 \xF0\x9F\x9A\xA3"),
            "\xE8\xAE\xAD\xE7\xBB\x83 \xF0\x9F\x9A\xA3");
}

TEST(Printable, EscapesWhatATerminalObeys) {
  EXPECT_EQ(printable("\x1b]0;owned\x07"), "\\x1b]0;owned\\x07");
  EXPECT_EQ(printable("a\ntrireme: b\r\t\x7f"), "a\\x0atrireme: b\\x0d\\x09\\x7f");
  EXPECT_EQ(printable(std::string("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(printable("\xC2\x9B"
                      "2J"),
            "\\xc2\\x9b2J");  // one character in 8 bits
  EXPECT_EQ(printable("\xE2\x80\xAE"
                      "abc"),
            "\\xe2\\x80\\xae"
            "abc");  // from right to left
}

TEST(Printable, EscapesWhatIsNoUtf8) {
  EXPECT_EQ(printable("\x9B"
                      "2J"),
            "\\x9b2J");
  EXPECT_EQ(printable("\xC0\x8A"), "\\xc0\\x8a");  // a line break, written longer than needed
  EXPECT_EQ(printable("\xED\xA0\x80"), "\\xed\\xa0\\x80");  // a surrogate
  EXPECT_EQ(printable("\xF4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");
  EXPECT_EQ(printable("x\xE8\xAE"), "x\\xe8\\xae");
}

TEST(Printable, CutsWhatIsTooLong) {
  EXPECT_EQ(printable("0123456789", 10), "0123456789");
  EXPECT_EQ(printable("0123456789a", 10), "0123456...");
  // Neither an escape nor a character is cut in two.
  EXPECT_EQ(printable("01234\n\n\n", 10), "01234...");
  EXPECT_EQ(printable("012345\xC3\xBC\xC3\xBC\xC3\xBC", 10), "012345...");
  EXPECT_EQ(printable("0123456789", 2), "..");
}

// Whatever the bytes are, nothing below a blank is left, and the length is kept.
TEST(Printable, IsNeverMoreThanItMayBe) {
  std::mt19937 random(20260801);
  for (int i = 0; i < 2000; ++i) {
    std::string text(random() % 64, '\0');
    for (char& c : text) {
      c = static_cast<char>(random());
    }
    const std::size_t longest = random() % 64;
    const std::string shown = printable(text, longest);
    EXPECT_LE(shown.size(), longest);
    for (const char c : shown) {
      EXPECT_TRUE(static_cast<unsigned char>(c) >= 0x20 && c != 0x7f);
    }
  }
}

}  // namespace
}  // namespace trireme
