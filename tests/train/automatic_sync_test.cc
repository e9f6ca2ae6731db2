// What --sync auto decides, from made-up machines and links.

#include "train/automatic_sync.h"

#include <gtest/gtest.h>

namespace trireme::automatic_sync_test {
namespace {

using detail::AutomaticSync;

constexpr std::int64_t kWindow = 20;

// A step takes `work`; summing gradients and averaging replicas take the time that their bytes
// take.
struct Place {
  double work = 0.1;
  double rate = 1e6;  // bytes in a second
  std::int64_t exact_bytes = 100'000;
  std::int64_t average_bytes = 100'000;
  std::int64_t since = 0;

  AutomaticSync::Measured measure(std::int64_t every) {
    AutomaticSync::Measured measured;
    measured.steps = kWindow;
    for (std::int64_t step = 0; step < kWindow; ++step) {
      ++since;
      if (every == AutomaticSync::kExact || since >= every) {
        const bool exact = every == AutomaticSync::kExact;
        measured.sent_bytes += exact ? exact_bytes : average_bytes;
        measured.averagings += exact ? 0 : 1;
        since = 0;
      }
    }
    measured.exchange_seconds = static_cast<double>(measured.sent_bytes) / rate;
    measured.seconds = static_cast<double>(kWindow) * work + measured.exchange_seconds;
    return measured;
  }
};

// What it does in so many windows, and the last reason.
std::vector<std::int64_t> follow(AutomaticSync& sync, Place& place, int windows, std::string* why) {
  std::vector<std::int64_t> all;
  for (int window = 0; window < windows; ++window) {
    if (const auto decision = sync.decide(place.measure(sync.now()))) {
      EXPECT_EQ(decision->every, sync.now());
      *why = decision->why;
    }
    all.push_back(sync.now());
  }
  return all;
}

TEST(AutomaticSync, AveragesWhereTheLinkIsSlowAndComesBackWhereItIsNot) {
  AutomaticSync sync(32);
  std::string why;
  Place place{.rate = 408'163};  // 0.245 s beside 0.1 s of work
  // Twice in a row; then averages take at most a quarter of the work: 0.245 / 0.1 / 0.25 = 9.8.
  EXPECT_EQ(follow(sync, place, 4, &why), (std::vector<std::int64_t>{0, 16, 16, 16}));
  EXPECT_EQ(why, "71 % waiting, link 0.408 MB/s");
  place.rate = 1e8;  // 0.001 s: nothing
  EXPECT_EQ(follow(sync, place, 3, &why), (std::vector<std::int64_t>{16, 0, 0}));
  EXPECT_EQ(why.substr(0, 10), "0 % waitin");
  place.rate = 1e4;  // 10 s: as many steps as may be
  EXPECT_EQ(follow(sync, place, 3, &why), (std::vector<std::int64_t>{0, 32, 32}));
}

// A single slow window, and links between the two bounds, change nothing.
TEST(AutomaticSync, IsNotRestless) {
  AutomaticSync sync(32);
  std::string why = "none";
  Place slow{.rate = 4e5};
  Place fast{.rate = 1e8};
  for (int i = 0; i < 3; ++i) {
    follow(sync, slow, 1, &why);
    follow(sync, fast, 1, &why);
  }
  Place between{.rate = 4e6};  // 0.025 beside 0.1: a fifth
  EXPECT_EQ(follow(sync, between, 3, &why), (std::vector<std::int64_t>{0, 0, 0}));
  EXPECT_EQ(why, "none");
  follow(sync, slow, 3, &why);
  const std::int64_t every = sync.now();
  EXPECT_NE(every, 0);
  // Half as slow as when the number was chosen: it stays. A tenth: fewer steps, but not exact.
  Place faster{.rate = 8e5};
  EXPECT_EQ(follow(sync, faster, 4, &why).back(), every);
  const std::int64_t fewer = follow(sync, between, 4, &why).back();
  EXPECT_GT(fewer, 0);
  EXPECT_LT(fewer, every);
}

// Averages of more bytes than gradients have (moving averages, states, 16-bit gradients) do not
// make the exact steps seem slower than they were.
TEST(AutomaticSync, LearnsWhatAnAverageCosts) {
  AutomaticSync sync(32);
  std::string why;
  Place place{.rate = 1e6, .average_bytes = 300'000};  // half of an exact step
  follow(sync, place, 3, &why);
  EXPECT_GT(sync.now(), 0);
  place.rate = 1e7;  // an exact step would wait for 0.01 s of 0.11, an average takes 0.03
  EXPECT_EQ(follow(sync, place, 3, &why).back(), 0);
}

// Steps in which nothing was averaged say nothing.
TEST(AutomaticSync, WaitsForAnAverage) {
  AutomaticSync sync(64, 64);
  Place place{.rate = 1e9};
  EXPECT_FALSE(sync.decide(place.measure(64)));
  EXPECT_FALSE(sync.decide(place.measure(64)));
  EXPECT_EQ(sync.now(), 64);
}

TEST(AutomaticSync, NeverGoesBeyondWhatItMay) {
  AutomaticSync sync(6);
  std::string why;
  Place place{.rate = 1e3};
  EXPECT_EQ(follow(sync, place, 4, &why).back(), 6);
}

}  // namespace
}  // namespace trireme::automatic_sync_test
