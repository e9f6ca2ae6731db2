#include "trireme/data/loader.h"

#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <thread>

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>

#include "data/augmentation.h"
#include "data/formula_dataset.h"
#include "trireme/core/error.h"
#include "trireme/data/views.h"

namespace trireme {
namespace {

using testing::FormulaDataset;

// Reads take a while that changes from sample to sample, and can be stopped or made to fail.
class SlowDataset final : public FormulaDataset {
 public:
  explicit SlowDataset(std::int64_t size)
      : FormulaDataset(size, {1}, 2, [](std::int64_t) { return 0; }) {}

  void read(std::span<const std::int64_t> samples, Batch& batch) const override {
    ++started;
    {
      std::unique_lock lock(mutex_);
      opened_.wait(lock, [&] { return open_; });
    }
    std::this_thread::sleep_for(std::chrono::microseconds(samples[0] * 7919 % 300));
    if (failing >= 0 && samples[0] == failing) {
      throw DataError("slow", 7, "made to fail");
    }
    FormulaDataset::read(samples, batch);
    ++finished;
  }

  void set_open(bool open) {
    {
      const std::lock_guard lock(mutex_);
      open_ = open;
    }
    opened_.notify_all();
  }

  mutable std::atomic<int> started = 0;
  mutable std::atomic<int> finished = 0;
  std::int64_t failing = -1;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable opened_;
  bool open_ = true;
};

std::vector<std::int64_t> expected_ids(std::int64_t first, std::int64_t count, std::int64_t size) {
  std::vector<std::int64_t> ids;
  for (std::int64_t i = first; i < first + count; ++i) {
    ids.push_back(i % size);
  }
  return ids;
}

template <class Condition>
bool soon(Condition condition) {
  for (int i = 0; i < 2000 && !condition(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return condition();
}

TEST(Loader, HandsOutBatchesInTheOrderOfRequests) {
  for (const int threads : {0, 1, 2, 8}) {
    for (const int ahead : {1, 3}) {
      const auto data = std::make_shared<SlowDataset>(101);
      const Sampler sampler(data, {.sampling = Sampling::kSequential});
      Loader loader(data, sampler, {.threads = threads, .ahead = ahead});
      std::int64_t requested = 0;
      for (std::int64_t taken = 0; taken < 150; ++taken) {
        while (requested < 150 && loader.outstanding() < 12) {
          loader.request(requested * 6, 1, 3);
          ++requested;
        }
        const Batch& batch = loader.next();
        ASSERT_EQ(batch.ids, expected_ids(taken * 6 + 3, 3, 101));
        ASSERT_EQ(batch.samples, 3);
      }
      EXPECT_EQ(loader.outstanding(), 0U);
      EXPECT_GT(loader.waited_seconds(), 0);
      EXPECT_THROW(loader.next(), ConfigError);
    }
  }
}

TEST(Loader, PreparesNoMoreThanItMay) {
  const auto data = std::make_shared<SlowDataset>(1000);
  const Sampler sampler(data, {.sampling = Sampling::kSequential});
  Loader loader(data, sampler, {.threads = 2, .ahead = 3});
  for (int i = 0; i < 50; ++i) {
    loader.request(i, 0, 1);
  }
  EXPECT_TRUE(soon([&] { return data->finished >= 3; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_LE(data->started, 3 + 2 - 1);
  EXPECT_EQ(loader.outstanding(), 50U);
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(loader.next().ids[0], i);
  }
}

TEST(Loader, PassesOnWhatReadingThrewAndGoesOn) {
  for (const int threads : {0, 1, 4}) {
    const auto data = std::make_shared<SlowDataset>(100);
    data->failing = 5;
    const Sampler sampler(data, {.sampling = Sampling::kSequential});
    Loader loader(data, sampler, {.threads = threads, .ahead = 2});
    for (int i = 0; i < 10; ++i) {
      loader.request(i, 0, 1);
    }
    for (int i = 0; i < 10; ++i) {
      if (i == 5) {
        EXPECT_THROW(loader.next(), DataError);
      } else {
        EXPECT_EQ(loader.next().ids[0], i);
      }
    }
  }
}

TEST(Loader, ClearForgetsRequestsAlsoThoseInWork) {
  for (const int threads : {0, 1, 3}) {
    const auto data = std::make_shared<SlowDataset>(1000);
    const Sampler sampler(data, {.sampling = Sampling::kSequential});
    Loader loader(data, sampler, {.threads = threads, .ahead = 2});
    for (int round = 0; round < 50; ++round) {
      for (int i = 0; i < 6; ++i) {
        loader.request(round * 10 + i, 0, 1);
      }
      if (round % 3 == 0) {
        loader.next();
      }
      loader.clear();
      EXPECT_EQ(loader.outstanding(), 0U);
      loader.request(round + 500, 0, 2);
      EXPECT_EQ(loader.next().ids, expected_ids(round + 500, 2, 1000));
    }
  }
  const auto data = std::make_shared<SlowDataset>(1000);
  data->set_open(false);
  const Sampler sampler(data, {.sampling = Sampling::kSequential});
  Loader loader(data, sampler, {.threads = 2, .ahead = 2});
  loader.request(1, 0, 1);
  loader.request(2, 0, 1);
  ASSERT_TRUE(soon([&] { return data->started == 2; }));
  loader.clear();  // while both are being read
  loader.request(3, 0, 1);
  data->set_open(true);
  EXPECT_EQ(loader.next().ids[0], 3);
}

TEST(Loader, EndsWithRequestsLeft) {
  const auto data = std::make_shared<SlowDataset>(1000);
  const Sampler sampler(data, {});
  {
    Loader loader(data, sampler, {.threads = 4, .ahead = 2});
    for (int i = 0; i < 1000; ++i) {
      loader.request(i, 0, 4);
    }
  }
  EXPECT_LT(data->started, 20);
}

// Its batches go round: in a steady state the same memory is filled again and again.
TEST(Loader, UsesItsBatchesAgain) {
  const auto data = std::make_shared<SlowDataset>(100);
  const Sampler sampler(data, {});
  Loader loader(data, sampler, {.threads = 2, .ahead = 2});
  loader.request(0, 0, 3);
  const Batch* batch = &loader.next();
  loader.request(3, 0, 3);
  EXPECT_EQ(&loader.next(), batch);
}

TEST(Loader, LeavesSignalsToTheProgram) {
  sigset_t before;
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  class Probe final : public FormulaDataset {
   public:
    Probe() : FormulaDataset(4, {1}, 2, [](std::int64_t) { return 0; }) {}
    void read(std::span<const std::int64_t> samples, Batch& batch) const override {
      sigset_t mask;
      pthread_sigmask(SIG_SETMASK, nullptr, &mask);
      blocked = sigismember(&mask, SIGTERM) == 1 && sigismember(&mask, SIGUSR1) == 1;
      FormulaDataset::read(samples, batch);
    }
    mutable std::atomic<bool> blocked = false;
  };
  const auto probe = std::make_shared<Probe>();
  Loader loader(probe, Sampler(probe, {}), {.threads = 1});
  loader.request(0, 0, 1);
  loader.next();
  EXPECT_TRUE(probe->blocked);
  sigset_t after;
  pthread_sigmask(SIG_SETMASK, nullptr, &after);
  EXPECT_EQ(sigismember(&after, SIGTERM), sigismember(&before, SIGTERM));
}

TEST(Loader, RefusesWhatItCannotDo) {
  const auto flat = std::make_shared<SlowDataset>(10);
  const Sampler sampler(flat, {});
  EXPECT_THROW(Loader(flat, sampler, {.augmentation = {.shift = 1}}), ConfigError);
  EXPECT_THROW(Loader(flat, sampler, {.augmentation = {.flip = true}}), ConfigError);
  EXPECT_THROW(Loader(flat, sampler, {.augmentation = {.noise = -1}}), ConfigError);
  EXPECT_THROW(Loader(flat, sampler, {.threads = -1}), ConfigError);
  EXPECT_THROW(Loader(flat, sampler, {.threads = 1, .ahead = 0}), ConfigError);
  Loader loader(flat, sampler, {.augmentation = {.noise = 1}});
  EXPECT_THROW(loader.request(0, 0, 0), ConfigError);
  EXPECT_THROW(loader.request(-1, 0, 1), ConfigError);
}

constexpr std::int64_t kChannels = 2;
constexpr std::int64_t kRows = 5;
constexpr std::int64_t kColumns = 7;
constexpr std::int64_t kPixels = kChannels * kRows * kColumns;

// No pixel is 0, and all of an image differ.
float pixel(std::int64_t sample, std::int64_t place) {
  return static_cast<float>(1 + place + 100 * sample);
}

std::shared_ptr<const Dataset> images(std::int64_t size) {
  return std::make_shared<FormulaDataset>(
      size,
      std::vector<std::int64_t>{kChannels, kRows, kColumns},
      2,
      [](std::int64_t) { return 0; },
      pixel);
}

// One step of 24 samples, cut into micro-batches.
std::vector<float> step_values(const LoaderOptions& options, std::int64_t samples) {
  const auto data = images(10);
  Loader loader(data, Sampler(data, {.seed = 4}), options);
  std::vector<float> values;
  for (std::int64_t m = 0; m < 24 / samples; ++m) {
    loader.request(48, m, samples);
  }
  while (loader.outstanding() > 0) {
    const Batch& batch = loader.next();
    values.insert(values.end(), batch.dense.begin(), batch.dense.end());
  }
  return values;
}

TEST(Augmentation, DependsOnNeitherThreadsNorMicroBatches) {
  LoaderOptions options{
      .augmentation = {.shift = 2, .flip = true, .noise = 0.5}, .seed = 9, .threads = 0};
  const std::vector<float> expected = step_values(options, 24);
  ASSERT_EQ(expected.size(), 24U * kPixels);
  for (const int threads : {0, 1, 4}) {
    options.threads = threads;
    for (const std::int64_t samples : {1, 4, 12, 24}) {
      EXPECT_EQ(step_values(options, samples), expected);
    }
  }
  options.seed = 10;
  EXPECT_NE(step_values(options, 24), expected);
}

// What an image looks like after a shift and a flip, from the definition.
std::vector<float> moved(std::int64_t sample, std::int64_t down, std::int64_t right, bool flip) {
  std::vector<float> out;
  for (std::int64_t channel = 0; channel < kChannels; ++channel) {
    for (std::int64_t row = 0; row < kRows; ++row) {
      for (std::int64_t column = 0; column < kColumns; ++column) {
        const std::int64_t from_row = row - down;
        const std::int64_t from_column = (flip ? kColumns - 1 - column : column) - right;
        const bool inside =
            from_row >= 0 && from_row < kRows && from_column >= 0 && from_column < kColumns;
        out.push_back(inside ? pixel(sample, (channel * kRows + from_row) * kColumns + from_column)
                             : 0.0F);
      }
    }
  }
  return out;
}

TEST(Augmentation, ShiftsAndFlipsEveryWayEquallyOften) {
  const auto data = images(1);
  for (const int most : {0, 1, 2, 9}) {  // 9: beyond the picture's size
    constexpr std::int64_t kDraws = 4000;
    Batch batch;
    data->read(std::vector<std::int64_t>(kDraws, 0), batch);
    detail::augment({.shift = most, .flip = true}, data->shape(), {}, 3, 0, batch);
    const int ways = 2 * (2 * most + 1) * (2 * most + 1);
    int found = 0;
    for (int flip = 0; flip < 2; ++flip) {
      for (int down = -most; down <= most; ++down) {
        for (int right = -most; right <= most; ++right) {
          if (std::abs(down) >= kRows || std::abs(right) >= kColumns) {
            continue;  // all of these are one picture, of zeros
          }
          const std::vector<float> expected = moved(0, down, right, flip == 1);
          int count = 0;
          for (std::int64_t i = 0; i < kDraws; ++i) {
            count += std::equal(expected.begin(), expected.end(), batch.dense.begin() + i * kPixels)
                         ? 1
                         : 0;
          }
          const double mean = static_cast<double>(kDraws) / ways;
          EXPECT_NEAR(count, mean, 6 * std::sqrt(mean)) << down << " " << right << " " << flip;
          found += count;
        }
      }
    }
    for (std::int64_t i = 0; i < kDraws; ++i) {
      const auto begin = batch.dense.begin() + i * kPixels;
      found += std::all_of(begin, begin + kPixels, [](float value) { return value == 0; }) ? 1 : 0;
    }
    EXPECT_EQ(found, kDraws);
  }
}

// An image that is shifted and then normalised is the one that is normalised and then shifted: what
// moves in is black, as in the file, and not the mean of all pixels.
TEST(Augmentation, ShiftsBlackIntoImagesThatAreNormalised) {
  const auto data = images(6);
  const FeatureStatistics statistics{{250, 3}, {20, 0.5}};
  const auto normalised = standardised(data, statistics);
  const LoaderOptions options{.augmentation = {.shift = 2, .flip = true}, .seed = 9, .threads = 0};
  const auto values_of = [&](const std::shared_ptr<const Dataset>& from) {
    Loader loader(from, Sampler(from, {.seed = 4}), options);
    loader.request(0, 0, 60);
    return loader.next().dense;
  };
  std::vector<float> expected = values_of(data);
  ASSERT_GT(std::count(expected.begin(), expected.end(), 0.0F), 100);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const std::size_t channel = i / (kRows * kColumns) % kChannels;
    expected[i] = static_cast<float>((expected[i] - statistics.mean[channel]) /
                                     statistics.deviation[channel]);
  }
  const std::vector<float> found = values_of(normalised);
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_NEAR(found[i], expected[i], 1e-3) << i;  // values up to 1400 in float32
  }
  // In a part of the data, too.
  EXPECT_EQ(fold_of(normalised, 0, 2, 0).train->background(), normalised->background());
}

// Moments and distribution of noise against those of the normal distribution. With k values the
// mean of the r-th power has the variance (E x^2r - (E x^r)^2) / k; five deviations are allowed.
TEST(Augmentation, NoiseIsGaussian) {
  constexpr std::int64_t kSamples = 20000;
  const FormulaDataset data(
      1, {100}, 2, [](std::int64_t) { return 0; }, [](std::int64_t, std::int64_t) { return 0.0F; });
  Batch batch;
  data.read(std::vector<std::int64_t>(kSamples, 0), batch);
  detail::augment({.noise = 1}, data.shape(), {}, 12, 1000, batch);
  const auto k = static_cast<double>(batch.dense.size());
  const double powers[] = {1, 0, 1, 0, 3, 0, 15, 0, 105};  // E x^r
  for (int r = 1; r <= 4; ++r) {
    double sum = 0;
    for (const float x : batch.dense) {
      sum += std::pow(static_cast<double>(x), r);
    }
    EXPECT_NEAR(sum / k, powers[r], 5 * std::sqrt((powers[2 * r] - powers[r] * powers[r]) / k))
        << r;
  }
  // The share below each point, also far out; binomial.
  for (const double point : {-4.5, -3.7, -3.0, -2.0, -1.0, -0.3, 0.0, 0.5, 1.5, 2.5, 3.66, 4.2}) {
    const double p = 0.5 * std::erfc(-point / std::sqrt(2.0));
    std::int64_t below = 0;
    for (const float x : batch.dense) {
      below += x < point ? 1 : 0;
    }
    EXPECT_NEAR(static_cast<double>(below), k * p, 5 * std::sqrt(k * p * (1 - p)) + 1) << point;
  }
  // Neighbours, and the same place of neighbouring samples, are independent: a product has
  // variance 1.
  for (const std::size_t distance : {1U, 100U}) {
    double sum = 0;
    for (std::size_t i = distance; i < batch.dense.size(); ++i) {
      sum += static_cast<double>(batch.dense[i]) * static_cast<double>(batch.dense[i - distance]);
    }
    EXPECT_NEAR(sum / k, 0, 5 / std::sqrt(k));
  }
}

}  // namespace
}  // namespace trireme
