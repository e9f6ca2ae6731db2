#include "doctor/pair_matrix.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "doctor/clock_difference.h"
#include "doctor/pair_measure.h"
#include "support/ranks.h"

namespace trireme {
namespace {

using detail::ClockDifference;
using detail::Finding;
using detail::judge_pairs;
using detail::PairMatrix;
using detail::pairs_text;
using detail::pairs_to_measure;
using detail::Verdict;

// 2 us and 8 GB/s inside a machine, 50 us and 1 GB/s between machines.
PairMatrix usual_pairs(const std::vector<int>& machine_of) {
  PairMatrix pairs(static_cast<int>(machine_of.size()));
  for (int from = 0; from < pairs.ranks; ++from) {
    for (int to = 0; to < pairs.ranks; ++to) {
      const bool inside =
          machine_of[static_cast<std::size_t>(from)] == machine_of[static_cast<std::size_t>(to)];
      if (from != to) {
        pairs.latency_us[pairs.at(from, to)] = inside ? 2 : 50;
        pairs.bytes_per_second[pairs.at(from, to)] = inside ? 8e9 : 1e9;
      }
    }
  }
  return pairs;
}

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(PairMatrix, ComparesPairsWithTheirOwnKind) {
  const std::vector<int> machine_of{0, 0, 0, 1, 1, 1};
  const auto findings = judge_pairs(usual_pairs(machine_of), machine_of);
  ASSERT_EQ(findings.size(), 4U);  // latency and bandwidth, inside and between
  for (const Finding& finding : findings) {
    EXPECT_EQ(finding.verdict, Verdict::kOk) << finding.value;
  }
  EXPECT_EQ(findings[0].numbers.at("median"), 2);
  EXPECT_EQ(findings[2].numbers.at("median"), 50);
}

TEST(PairMatrix, NamesTheSlowPair) {
  const std::vector<int> machine_of{0, 0, 0, 1, 1, 1};
  PairMatrix pairs = usual_pairs(machine_of);
  pairs.latency_us[pairs.at(1, 2)] = pairs.latency_us[pairs.at(2, 1)] = 5;
  pairs.bytes_per_second[pairs.at(4, 2)] = 0.25e9;
  const auto findings = judge_pairs(pairs, machine_of);
  ASSERT_EQ(findings.size(), 4U);
  EXPECT_EQ(findings[0].verdict, Verdict::kWarning);
  EXPECT_EQ(findings[0].numbers.at("slow_from"), 1);
  EXPECT_EQ(findings[0].numbers.at("slow_to"), 2);
  EXPECT_TRUE(says(findings[0].value, "ranks 1 and 2")) << findings[0].value;
  EXPECT_TRUE(says(findings[0].value, "2.50 times")) << findings[0].value;
  EXPECT_EQ(findings[1].verdict, Verdict::kOk);
  EXPECT_EQ(findings[2].verdict, Verdict::kOk);
  EXPECT_EQ(findings[3].verdict, Verdict::kWarning);
  EXPECT_TRUE(says(findings[3].value, "ranks 4 (machine 1) to 2 (machine 0)")) << findings[3].value;
  EXPECT_TRUE(says(findings[3].value, "4.00 times")) << findings[3].value;
}

// Where all are as slow, there is nothing to compare with.
TEST(PairMatrix, NamesMemoryThatIsTooSlow) {
  const std::vector<int> machine_of{0, 0};
  PairMatrix pairs = usual_pairs(machine_of);
  pairs.bytes_per_second[pairs.at(0, 1)] = pairs.bytes_per_second[pairs.at(1, 0)] = 0.135e9;
  const auto findings = judge_pairs(pairs, machine_of);
  ASSERT_EQ(findings.size(), 2U);
  EXPECT_EQ(findings[1].verdict, Verdict::kWarning);
  EXPECT_TRUE(says(findings[1].value, "where more than 1000 MB/s is usual")) << findings[1].value;
  EXPECT_TRUE(says(findings[1].advice, "idle machine")) << findings[1].advice;
}

TEST(PairMatrix, KnowsAllSlowPairs) {
  using detail::slow_pairs;
  const std::vector<int> machine_of{0, 0, 0, 0, 1, 1};
  PairMatrix pairs = usual_pairs(machine_of);
  EXPECT_TRUE(slow_pairs(pairs, machine_of).empty());
  pairs.latency_us[pairs.at(1, 2)] = pairs.latency_us[pairs.at(2, 1)] = 5;
  pairs.bytes_per_second[pairs.at(2, 1)] = 1e9;
  pairs.bytes_per_second[pairs.at(4, 3)] = 0.25e9;
  EXPECT_EQ(slow_pairs(pairs, machine_of), (std::vector<std::pair<int, int>>{{1, 2}, {3, 4}}));
}

TEST(PairMatrix, TwiceTheMedianIsNotYetSlow) {
  const std::vector<int> machine_of{0, 0, 0};
  PairMatrix pairs = usual_pairs(machine_of);
  pairs.latency_us[pairs.at(0, 1)] = pairs.latency_us[pairs.at(1, 0)] = 4;
  EXPECT_EQ(judge_pairs(pairs, machine_of)[0].verdict, Verdict::kOk);
  pairs.latency_us[pairs.at(0, 1)] = pairs.latency_us[pairs.at(1, 0)] = 4.1;
  EXPECT_EQ(judge_pairs(pairs, machine_of)[0].verdict, Verdict::kWarning);
}

// There is no better pair to compare with.
TEST(PairMatrix, WarnsWhereAllPairsAreSlow) {
  const std::vector<int> machine_of{0, 0, 1, 1};
  PairMatrix pairs = usual_pairs(machine_of);
  for (double& latency : pairs.latency_us) {
    latency *= 19;
  }
  for (const Finding& finding : judge_pairs(pairs, machine_of)) {  // 38 us and 950 us
    EXPECT_EQ(finding.verdict, Verdict::kOk) << finding.value;
  }
  for (double& latency : pairs.latency_us) {
    latency *= 3;
  }
  const auto findings = judge_pairs(pairs, machine_of);
  ASSERT_EQ(findings.size(), 4U);
  for (const std::size_t latency : {0, 2}) {
    EXPECT_EQ(findings[latency].verdict, Verdict::kWarning) << findings[latency].value;
    EXPECT_TRUE(says(findings[latency].value, "is usual")) << findings[latency].value;
    EXPECT_TRUE(says(findings[latency].advice, "idle machine")) << findings[latency].advice;
    EXPECT_EQ(findings[latency + 1].verdict, Verdict::kOk);
  }
}

TEST(PairMatrix, HasNothingToSayAboutOneRank) {
  EXPECT_TRUE(judge_pairs(PairMatrix(1), {0}).empty());
  EXPECT_EQ(pairs_text(PairMatrix(1), {0}), "");
}

TEST(PairMatrix, PrintsEveryPairOfFewRanks) {
  const std::vector<int> machine_of{0, 1, 1};
  PairMatrix pairs = usual_pairs(machine_of);
  pairs.bytes_per_second[pairs.at(2, 0)] = 123e6;
  const std::string text = pairs_text(pairs, machine_of);
  EXPECT_TRUE(says(text, "0     -  50.0  50.0\n1  50.0     -  2.00\n2  50.0  2.00     -\n"))
      << text;
  EXPECT_TRUE(says(text, "\n2   123  8000     -\n")) << text;
}

TEST(PairMatrix, PrintsMachinesOfManyRanks) {
  const std::vector<int> machine_of{0, 0, 0, 0, 0, 1, 1, 1, 1};
  PairMatrix pairs = usual_pairs(machine_of);
  pairs.latency_us[pairs.at(0, 5)] = pairs.latency_us[pairs.at(5, 0)] = 20;
  pairs.latency_us[pairs.at(0, 6)] = pairs.latency_us[pairs.at(6, 0)] = 80;
  const std::string text = pairs_text(pairs, machine_of);
  EXPECT_TRUE(says(text, "0-1       20.0    50.0   80.0\n")) << text;
  EXPECT_TRUE(says(text, "0-1       1000    1000   1000\n")) << text;
}

TEST(PairMatrix, MeasuresAllPairsOfFewRanksAndSomeOfMany) {
  EXPECT_EQ(pairs_to_measure(std::vector<int>(8)).size(), 8U * 7 / 2);
  EXPECT_TRUE(pairs_to_measure({0}).empty());
  std::vector<int> machine_of;
  for (int rank = 0; rank < 64; ++rank) {
    machine_of.push_back(rank / 16);
  }
  const auto pairs = pairs_to_measure(machine_of);
  EXPECT_EQ(pairs.size(), 32U * 31 / 2);  // eight of each of the four machines
  for (const auto& [a, b] : pairs) {
    EXPECT_LT(a, b);
    EXPECT_LT(a % 16, 8);
    EXPECT_LT(b % 16, 8);
  }
}

TEST(ClockDifference, FollowsTheShortestExchange) {
  // The other clock is 5 s ahead. The answer is read somewhere within an exchange; the shorter the
  // exchange, the less that can hide.
  const ClockDifference clock =
      detail::estimate_difference({{100, 105.9, 101}, {200, 205.06, 200.1}, {300, 305.2, 300.5}});
  EXPECT_NEAR(clock.uncertainty, 0.05, 1e-9);
  EXPECT_NEAR(clock.seconds, 5.01, 1e-9);
  EXPECT_LE(std::abs(clock.seconds - 5), clock.uncertainty);
}

TEST(ClockDifference, FarApartIsAWarning) {
  EXPECT_TRUE(detail::judge_clocks({{0, 0}}).empty());
  const auto findings = detail::judge_clocks({{0, 0}, {0.9, 0.01}, {-1.5, 0.01}, {1.5, 0.6}});
  ASSERT_EQ(findings.size(), 3U);
  EXPECT_EQ(findings[0].verdict, Verdict::kOk);
  EXPECT_EQ(findings[1].verdict, Verdict::kWarning);
  EXPECT_TRUE(says(findings[1].value, "machine 2 is 1500 ms behind")) << findings[1].value;
  EXPECT_EQ(findings[2].verdict, Verdict::kOk);  // it may be less than a second
}

TEST(PairMeasure, FillsTheMatrixOnEveryRank) {
  testing::fork_world(3, [](World& world) {
    const PairMatrix pairs = detail::measure_pairs(world, {0, 0, 1});
    for (int from = 0; from < 3; ++from) {
      for (int to = 0; to < 3; ++to) {
        const double latency = pairs.latency_us[pairs.at(from, to)];
        const double speed = pairs.bytes_per_second[pairs.at(from, to)];
        EXPECT_EQ(latency > 0, from != to);
        EXPECT_EQ(speed > 0, from != to);
        EXPECT_EQ(latency, pairs.latency_us[pairs.at(to, from)]);
      }
    }
    // The same clock read by both: the truth is 0.
    const auto clocks = detail::measure_clocks(world, {0, 0, 1});
    ASSERT_EQ(clocks.size(), 2U);
    EXPECT_GT(clocks[1].uncertainty, 0);
    EXPECT_LE(std::abs(clocks[1].seconds), clocks[1].uncertainty + 1e-6);
  });
}

}  // namespace
}  // namespace trireme
