// Dealing micro-batches to ranks of different speed, and finding their size.

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>

#include <gtest/gtest.h>

#include "support/ranks.h"
#include "train/micro_batch_search.h"
#include "train/rank_balance.h"
#include "train/sampling_choice.h"
#include "trireme/core/error.h"
#include "trireme/core/random.h"
#include "trireme/shard/dealing.h"

namespace trireme::balance_test {
namespace {

using Counts64 = std::vector<std::int64_t>;

double slowest(const Counts64& counts, const std::vector<double>& speeds) {
  double time = 0;
  for (std::size_t rank = 0; rank < counts.size(); ++rank) {
    if (counts[rank] > 0) {
      time = speeds[rank] > 0 ? std::max(time, static_cast<double>(counts[rank]) / speeds[rank])
                              : std::numeric_limits<double>::infinity();
    }
  }
  return time;
}

double best_time(std::int64_t left,
                 std::size_t rank,
                 Counts64& counts,
                 const std::vector<double>& speeds) {
  if (rank + 1 == speeds.size()) {
    counts.at(rank) = left;
    return slowest(counts, speeds);
  }
  double best = std::numeric_limits<double>::infinity();
  for (std::int64_t mine = 0; mine <= left; ++mine) {
    counts.at(rank) = mine;
    best = std::min(best, best_time(left - mine, rank + 1, counts, speeds));
  }
  return best;
}

TEST(DealMicroBatches, IsAsGoodAsTryingEverything) {
  RandomStream random(7);
  for (int round = 0; round < 200; ++round) {
    const std::size_t ranks = 1 + random.below(4);
    const auto micro_batches = static_cast<std::int64_t>(1 + random.below(9));
    std::vector<double> speeds;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      speeds.push_back(random.below(5) == 0 ? 0 : 0.1 + random.uniform() * 3);
    }
    speeds[random.below(ranks)] = 1;
    const Counts64 counts = deal_micro_batches(micro_batches, speeds);
    EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}), micro_batches);
    Counts64 tried(ranks);
    EXPECT_LE(slowest(counts, speeds), best_time(micro_batches, 0, tried, speeds) * (1 + 1e-12));
  }
}

TEST(DealMicroBatches, EqualRanksGetEqualCounts) {
  EXPECT_EQ(deal_micro_batches(7, {1, 1, 1}), (Counts64{3, 2, 2}));
  EXPECT_EQ(deal_micro_batches(6, {2, 2, 2}), (Counts64{2, 2, 2}));
  EXPECT_EQ(deal_micro_batches(2, {1, 1, 1, 1}), (Counts64{1, 1, 0, 0}));
  EXPECT_EQ(deal_micro_batches(6, {2, 1}), (Counts64{4, 2}));
  EXPECT_EQ(deal_micro_batches(3, {0, 5, 0}), (Counts64{0, 3, 0}));
  // Whatever the unit.
  EXPECT_EQ(deal_micro_batches(9, {2e-9, 1e-9}), deal_micro_batches(9, {2e9, 1e9}));
  EXPECT_THROW(deal_micro_batches(0, {1}), ConfigError);
  EXPECT_THROW(deal_micro_batches(3, {}), ConfigError);
  EXPECT_THROW(deal_micro_batches(3, {0, 0}), ConfigError);
  EXPECT_THROW(deal_micro_batches(3, {1, -1}), ConfigError);
  EXPECT_THROW(deal_micro_batches(3, {1, std::numeric_limits<double>::quiet_NaN()}), ConfigError);
}

constexpr int kWindow = 20;

TEST(RankBalance, FollowsMeasuredTimes) {
  TrainSettings settings;
  settings.balance = Balance::kMeasured;
  detail::RankBalance balance(settings, 2);
  EXPECT_EQ(balance.deal(6), (Counts64{3, 3}));
  EXPECT_FALSE(balance.wants_new_deal());
  for (int step = 0; step < kWindow; ++step) {
    EXPECT_EQ(balance.deal(6), (Counts64{3, 3})) << "within a window";
    balance.observe({0.3, 0.6}, {3, 3});  // the second takes twice as long for each
    EXPECT_EQ(balance.news(), "");
  }
  EXPECT_TRUE(balance.wants_new_deal());
  EXPECT_EQ(balance.deal(6), (Counts64{4, 2}));
  // Times are of a micro-batch, not of a step: with fewer it is as slow as before.
  for (int step = 0; step < kWindow; ++step) {
    balance.observe({0.4, 0.4}, {4, 2});
    const std::string news = balance.news();
    EXPECT_EQ(news.empty(), step + 1 < kWindow);
    // Two have no middle.
    EXPECT_EQ(news.find("2.0 times the time of the other") == std::string::npos, news.empty());
  }
  EXPECT_EQ(balance.stragglers(), Counts64{1});
  EXPECT_EQ(balance.deal(6), (Counts64{4, 2}));
  std::string news;
  for (int step = 0; step < kWindow; ++step) {
    balance.observe({0.4, 0.2}, {4, 2});
    news += balance.news();
  }
  EXPECT_EQ(news, "no rank is slow any more");
  EXPECT_EQ(balance.deal(6), (Counts64{3, 3}));
  EXPECT_TRUE(balance.stragglers().empty());
}

TEST(RankBalance, OthersStayAsTheyAre) {
  TrainSettings settings;
  settings.balance = Balance::kSpeeds;
  settings.speeds = {1, 3};
  detail::RankBalance given(settings, 2);
  settings.balance = Balance::kEqual;
  settings.speeds = {};
  detail::RankBalance equal(settings, 3);
  std::string news;
  for (int step = 0; step < 2 * kWindow; ++step) {
    given.observe({1, 1}, {1, 3});
    equal.observe({0.1, 0.1, 0.5}, {1, 1, 1});
    news += equal.news();
  }
  EXPECT_EQ(given.deal(4), (Counts64{1, 3}));
  EXPECT_FALSE(given.wants_new_deal());
  EXPECT_EQ(equal.deal(3), (Counts64{1, 1, 1}));
  EXPECT_EQ(equal.stragglers(), Counts64{2});
  EXPECT_NE(news.find("rank 2 takes 5.0 times the median (500.0 ms per micro-batch)"),
            std::string::npos)
      << news;
}

// What is advised can be done.
TEST(RankBalance, AdvisesNothingThatSettingsRefuse) {
  const auto news_with = [](const TrainSettings& settings) {
    detail::RankBalance balance(settings, 2);
    std::string news;
    for (int step = 0; step < 2 * kWindow; ++step) {
      balance.observe({0.1, 0.5}, {1, 1});
      news += balance.news();
    }
    return news;
  };
  const std::string advice = "--balance measured";
  EXPECT_NE(news_with({}).find(advice), std::string::npos);
  TrainSettings settings;
  for (const Synchronisation sync : {Synchronisation::kLocal,
                                     Synchronisation::kDiLoCo,
                                     Synchronisation::kGossip,
                                     Synchronisation::kStale,
                                     Synchronisation::kAsynchronous}) {
    settings.sync = sync;
    const std::string news = news_with(settings);
    EXPECT_NE(news.find("rank 1 takes 5.0 times"), std::string::npos) << news;
    EXPECT_EQ(news.find(advice), std::string::npos) << news;
  }
  settings.sync = Synchronisation::kExact;
  settings.compress = "int8";
  EXPECT_NE(news_with(settings).find(advice), std::string::npos);
  settings.compress = "topk:0.01";
  EXPECT_EQ(news_with(settings).find(advice), std::string::npos);
}

// On a machine that does something else, too, now this rank takes longer and now that.
TEST(RankBalance, ARankIsSlowThatIsSoInTwoWindows) {
  detail::RankBalance balance(TrainSettings{}, 2);
  for (int window = 0; window < 6; ++window) {
    for (int step = 0; step < kWindow; ++step) {
      balance.observe(window % 2 == 0 ? std::vector<double>{0.2, 0.1} : std::vector{0.1, 0.2},
                      {1, 1});
      EXPECT_EQ(balance.news(), "") << window;
    }
    EXPECT_TRUE(balance.stragglers().empty());
  }
}

// Servers are to compute nothing: they are not idle, and the number to start includes them.
TEST(IdleRanks, ServersAreNone) {
  EXPECT_EQ(detail::idle_ranks(2, 1, 64, 32, 64, false), "");
  EXPECT_EQ(detail::idle_ranks(3, 1, 64, 32, 64, false),
            "1 of 3 ranks that are no servers has nothing to compute: a step of 64 samples is 2 "
            "micro-batches of 32; start no more than 3 ranks (-n), or make micro-batches smaller "
            "(--micro-batch 16, which changes the result)");
}

// Said where a rank gets no micro-batch, and only there; what is advised gives work to all.
TEST(IdleRanks, AreCountedAndCanBeHelped) {
  for (const std::int64_t batch : {1, 2, 6, 12, 35, 64}) {
    for (const std::int64_t size : detail::divisors_of(batch)) {
      for (std::int64_t ranks = 1; ranks <= 9; ++ranks) {
        const Counts64 dealt = deal_micro_batches(
            batch / size, std::vector<double>(static_cast<std::size_t>(ranks), 1));
        const auto idle = std::count(dealt.begin(), dealt.end(), 0);
        const std::string text = detail::idle_ranks(ranks, 0, batch, size, batch, false);
        SCOPED_TRACE(detail::concat(ranks, " ranks, ", batch, " by ", size, ": ", text));
        if (idle == 0) {
          EXPECT_EQ(text, "");
          continue;
        }
        EXPECT_EQ(text.find(detail::concat(idle, " of ", ranks, " ranks ha")), 0U);
        const std::string flag = "--micro-batch ";
        const auto at = text.find(flag);
        EXPECT_EQ(at != std::string::npos, batch >= ranks);
        if (at != std::string::npos) {
          const std::int64_t advised = std::stoll(text.substr(at + flag.size()));
          EXPECT_EQ(batch % advised, 0);
          EXPECT_LT(advised, size);
          EXPECT_EQ(detail::idle_ranks(ranks, 0, batch, advised, batch, false), "");
        }
      }
    }
  }
}

TEST(MicroBatchSearch, KnowsDivisors) {
  for (std::int64_t batch = 1; batch <= 200; ++batch) {
    Counts64 expected;
    for (std::int64_t size = 1; size <= batch; ++size) {
      if (batch % size == 0) {
        expected.push_back(size);
      }
    }
    EXPECT_EQ(detail::divisors_of(batch), expected);
    for (std::int64_t size = 1; size <= batch; ++size) {
      std::int64_t smaller = 0;
      for (const std::int64_t each : expected) {
        smaller = each < size ? each : smaller;
      }
      EXPECT_EQ(detail::smaller_micro_batch(batch, size), smaller);
    }
  }
}

TEST(MicroBatchSearch, FindsWhatFitsEverywhere) {
  testing::spawn_world(3, [](World& world) {
    std::vector<std::int64_t> tried;
    const auto found = [&](std::int64_t batch, std::int64_t most, std::int64_t room) {
      tried.clear();
      return detail::largest_micro_batch(
          batch,
          most,
          [&](std::int64_t size) {
            tried.push_back(size);
            return size <= room;
          },
          world);
    };
    // Rank 1 has the least room.
    EXPECT_EQ(found(12, 12, world.rank() == 1 ? 5 : 100), 4);
    EXPECT_EQ(tried, (Counts64{1, 2, 3, 4, 6}));  // the same on all
    EXPECT_EQ(found(12, 4, 100), 4);
    EXPECT_EQ(found(7, 6, 100), 1);
    EXPECT_EQ(found(8, 8, world.rank() == 2 ? 0 : 8), 0);
    EXPECT_EQ(tried, Counts64{1});
  });
}

// Batches of 32 and 33 can only be dealt one sample at a time.
TEST(SingleSamples, AreExplained) {
  TrainSettings settings;
  settings.batch = 32;
  settings.batch_schedule = {"5:48"};
  EXPECT_EQ(detail::single_samples(settings), "");
  settings.batch_schedule = {"5:33"};
  EXPECT_NE(detail::single_samples(settings).find("32, 33"), std::string::npos);
  settings.batch_schedule = {};
  EXPECT_EQ(detail::single_samples(settings), "");
}

}  // namespace
}  // namespace trireme::balance_test
