#include "trireme/core/concat.h"

#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "support/foreign_locale.h"
#include "trireme/core/error.h"

namespace trireme::detail {
namespace {

struct Point {
  int x, y;
  friend std::ostream& operator<<(std::ostream& out, const Point& point) {
    return out << '(' << point.x << ' ' << point.y << ')';
  }
};

TEST(Concat, FillsTheGapsOfASentenceInTheirOrder) {
  EXPECT_EQ(concat("rank {} of {} is lost", {1, 4}), "rank 1 of 4 is lost");
  EXPECT_EQ(concat("{}", {"all"}), "all");
  EXPECT_EQ(concat("{}{}: {}", {'a', 'b', 'c'}), "ab: c");
}

TEST(Concat, WritesEachValueAsAStreamDoes) {
  const std::string name = "name";
  const char* const word = "word";
  EXPECT_EQ(concat("{} {} {} {}", {name, word, std::string_view("view"), name + "s"}),
            "name word view names");
  EXPECT_EQ(concat("{} {} {} {}", {true, 0.1, 1e-9F, std::int64_t{-5000000000}}),
            "1 0.1 1e-09 -5000000000");
  EXPECT_EQ(concat("at {}", {Point{3, -4}}), "at (3 -4)");
}

TEST(Concat, TakesNothingButAPairOfBracesForAGap) {
  EXPECT_EQ(concat("{ {} }", {1}), "{ 1 }");
  EXPECT_EQ(concat("{{}}", {1}), "{1}");
  EXPECT_EQ(concat("}{ {x} {}", {1}), "}{ {x} 1");
  EXPECT_EQ(concat("a {} of ", 2), "a {} of 2") << "without a list it is no sentence";
  EXPECT_EQ(concat("{}{}", {"{}", 1}), "{}1") << "what fills a gap has none";
}

TEST(Concat, WritesTheNumbersOfASentenceTheSameInEveryLocale) {
  const testing::ForeignLocale foreign;
  EXPECT_EQ(concat("port {}, share {}", {29500, 0.5}), "port 29500, share 0.5");
}

TEST(Listed, PutsASeparatorBetweenTheTextsOfValues) {
  EXPECT_EQ(listed(std::vector<int>{}), "");
  EXPECT_EQ(listed(std::vector<int>{7}), "7");
  EXPECT_EQ(listed(std::vector<int>{1, -2, 3}), "1, -2, 3");
  EXPECT_EQ(listed(std::vector<std::string>{"a", "b"}, {}, "\n"), "a\nb");
  EXPECT_EQ(listed(std::vector<Point>{{1, 2}, {3, 4}}, &Point::y, "; "), "2; 4");
}

TEST(Concat, GivesChecksTheirSentences) {
  const auto message = [](auto check) {
    try {
      check();
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("nothing was thrown");
  };
  EXPECT_EQ(message([] {
              TRIREME_CHECK(1 > 2, "expected {}, found {}", {2, 1});
            }),
            "expected 2, found 1");
  EXPECT_NE(message([] {
              TRIREME_ASSERT(1 > 2, "{} and {}", {"two", "one"});
            }).find("two and one (1 > 2 is false"),
            std::string::npos);
}

}  // namespace
}  // namespace trireme::detail
