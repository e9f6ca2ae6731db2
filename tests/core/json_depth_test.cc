#include "trireme/core/json_depth.h"

#include <string>

#include <gtest/gtest.h>

namespace trireme {
namespace {

TEST(JsonDepth, CountsOpenBrackets) {
  EXPECT_EQ(json_too_deep_at("", 0), std::nullopt);
  EXPECT_EQ(json_too_deep_at("7", 0), std::nullopt);
  EXPECT_EQ(json_too_deep_at("{}", 0), 0U);
  EXPECT_EQ(json_too_deep_at(R"({"a": [1, {"b": []}]})", 4), std::nullopt);
  EXPECT_EQ(json_too_deep_at(R"({"a": [1, {"b": []}]})", 3), 16U);
  EXPECT_EQ(json_too_deep_at("[[], [], {}, [[]]]", 2), 14U) << "side by side is not deeper";
}

TEST(JsonDepth, TextInQuotesIsNoBracket) {
  EXPECT_EQ(json_too_deep_at(R"(["[[[[", "{\"[[[["])", 1), std::nullopt);
  EXPECT_EQ(json_too_deep_at(R"(["\\", []])", 1), 7U) << "the backslash is escaped, not the quote";
}

TEST(JsonDepth, TakesWhatIsNoJson) {
  EXPECT_EQ(json_too_deep_at("]]]][", 1), std::nullopt);
  EXPECT_EQ(json_too_deep_at("\"never ends [[[", 1), std::nullopt);
  EXPECT_EQ(json_too_deep_at("\"\\", 1), std::nullopt);
  EXPECT_EQ(json_too_deep_at(std::string(1'000'000, '[')),
            static_cast<std::size_t>(kMostJsonLevels));
  EXPECT_EQ(json_too_deep_at(std::string(static_cast<std::size_t>(kMostJsonLevels), '[')),
            std::nullopt);
}

}  // namespace
}  // namespace trireme
