#include "trireme/data/views.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include <gtest/gtest.h>

#include "data/data_files.h"
#include "data/formula_dataset.h"
#include "data/permutation.h"
#include "trireme/core/error.h"
#include "trireme/data/readers.h"

namespace trireme {
namespace {

using testing::DataFolder;
using testing::FormulaDataset;
using testing::token_bytes;

std::shared_ptr<const Dataset> counted(std::int64_t size) {
  return std::make_shared<FormulaDataset>(
      size, std::vector<std::int64_t>{2}, 3, [](std::int64_t sample) { return sample % 3; });
}

// The samples of `all` (whose values are their numbers) that a part shows.
std::vector<std::int64_t> shown_by(const Dataset& part) {
  std::vector<std::int64_t> samples;
  for (std::int64_t i = 0; i < part.size(); ++i) {
    samples.push_back(i);
  }
  Batch batch;
  part.read(samples, batch);
  EXPECT_EQ(batch.ids, samples);
  std::vector<std::int64_t> seen;
  for (std::size_t row = 0; row < samples.size(); ++row) {
    seen.push_back(static_cast<std::int64_t>(batch.dense[row * 2]));
    EXPECT_EQ(batch.labels[row], seen.back() % 3);
    EXPECT_EQ(part.label(samples[row]), seen.back() % 3);
  }
  return seen;
}

void expect_once(std::vector<std::int64_t> first,
                 const std::vector<std::int64_t>& second,
                 std::int64_t size) {
  first.insert(first.end(), second.begin(), second.end());
  const std::set<std::int64_t> different(first.begin(), first.end());
  EXPECT_EQ(static_cast<std::int64_t>(first.size()), size);
  EXPECT_EQ(static_cast<std::int64_t>(different.size()), size);
  EXPECT_GE(*different.begin(), 0);
  EXPECT_LT(*different.rbegin(), size);
}

TEST(Permutation, ReachesEveryPlaceOnceForAnySize) {
  for (const std::int64_t n :
       {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 97, 256, 257, 1000, 1023, 1024, 1025, 65537}) {
    for (const std::uint64_t key : {0, 1, 77}) {
      const detail::Permutation order(n, key);
      std::vector<bool> seen(static_cast<std::size_t>(n), false);
      for (std::int64_t place = 0; place < n; ++place) {
        const std::int64_t sample = order.at(place);
        ASSERT_GE(sample, 0);
        ASSERT_LT(sample, n);
        ASSERT_FALSE(seen[static_cast<std::size_t>(sample)]);
        seen[static_cast<std::size_t>(sample)] = true;
      }
    }
  }
  const detail::Permutation huge(std::int64_t{1} << 40, 3);
  std::set<std::int64_t> seen;
  for (std::int64_t place = 0; place < 1000; ++place) {
    seen.insert(huge.at(place));
  }
  EXPECT_EQ(seen.size(), 1000U);
}

// Over many keys every (place, sample) pair is as frequent as any other. A count is binomial with
// mean m = keys / n and variance below m; six deviations are exceeded once in 10^9 counts.
TEST(Permutation, IsEvenOverItsKeys) {
  for (const std::int64_t n : {2, 3, 5, 6, 8, 13}) {
    const int keys = 4000 * static_cast<int>(n);
    std::vector<int> counts(static_cast<std::size_t>(n * n), 0);
    for (int key = 0; key < keys; ++key) {
      const detail::Permutation order(n, static_cast<std::uint64_t>(key));
      for (std::int64_t place = 0; place < n; ++place) {
        ++counts[static_cast<std::size_t>(place * n + order.at(place))];
      }
    }
    for (const int count : counts) {
      EXPECT_NEAR(count, 4000, 6 * std::sqrt(4000.0)) << n;
    }
  }
}

// Neighbours do not stay neighbours: of n - 1 steps in a random order, about 2 go to a neighbour
// (each with the chance 2 / n; nearly a Poisson number, 20 of which is beyond 10^-12).
TEST(Permutation, LeavesNoNeighboursTogether) {
  for (const std::int64_t n : {1000, 4096, 60000}) {
    const detail::Permutation order(n, 5);
    int together = 0;
    for (std::int64_t place = 1; place < n; ++place) {
      together += std::abs(order.at(place) - order.at(place - 1)) == 1 ? 1 : 0;
    }
    EXPECT_LT(together, 20) << n;
  }
}

TEST(HoldOut, DividesAllSamplesInTwo) {
  for (const std::int64_t n : {2, 3, 10, 101}) {
    for (const double fraction : {0.001, 0.1, 0.5, 0.999}) {
      const Parts parts = hold_out(counted(n), fraction, 4);
      const double wanted = fraction * static_cast<double>(n);
      EXPECT_GE(parts.held_out->size(), 1);
      EXPECT_GE(parts.train->size(), 1);
      EXPECT_NEAR(static_cast<double>(parts.held_out->size()), wanted, 1);
      expect_once(shown_by(*parts.train), shown_by(*parts.held_out), n);
    }
  }
  const auto held = [](std::uint64_t seed) {
    return shown_by(*hold_out(counted(50), 0.2, seed).held_out);
  };
  EXPECT_EQ(held(1), held(1));
  EXPECT_NE(held(1), held(2));
  EXPECT_THROW(hold_out(counted(1), 0.5, 0), ConfigError);
  EXPECT_THROW(hold_out(counted(9), 0, 0), ConfigError);
  EXPECT_THROW(hold_out(counted(9), 1, 0), ConfigError);
}

TEST(HoldOut, OfAPartIsAPart) {
  const Parts outer = hold_out(counted(40), 0.25, 1);
  const Parts inner = hold_out(outer.train, 0.5, 2);
  std::vector<std::int64_t> both = shown_by(*inner.train);
  const std::vector<std::int64_t> other = shown_by(*inner.held_out);
  both.insert(both.end(), other.begin(), other.end());
  expect_once(both, shown_by(*outer.held_out), 40);
}

TEST(Folds, HoldEverySampleOutOnce) {
  for (const std::int64_t n : {2, 5, 10, 103}) {
    for (const int folds : {2, 3, 5, 10}) {
      if (folds > n) {
        EXPECT_THROW(fold_of(counted(n), 0, folds, 0), ConfigError);
        continue;
      }
      std::vector<std::int64_t> held;
      for (int fold = 0; fold < folds; ++fold) {
        const Parts parts = fold_of(counted(n), fold, folds, 9);
        const std::vector<std::int64_t> here = shown_by(*parts.held_out);
        EXPECT_GE(parts.held_out->size(), n / folds);
        EXPECT_LE(parts.held_out->size(), n / folds + 1);
        expect_once(shown_by(*parts.train), here, n);
        held.insert(held.end(), here.begin(), here.end());
      }
      expect_once(held, {}, n);
    }
  }
  EXPECT_THROW(fold_of(counted(9), 3, 3, 0), ConfigError);
  EXPECT_THROW(fold_of(counted(9), 0, 1, 0), ConfigError);
}

// A text whose tokens are their own places in it.
std::shared_ptr<Dataset> counting_text(const DataFolder& folder,
                                       std::int64_t length,
                                       const TokenOptions& options) {
  std::vector<std::uint16_t> tokens(static_cast<std::size_t>(length));
  std::iota(tokens.begin(), tokens.end(), std::uint16_t{0});
  TokenOptions wide = options;
  wide.type = TokenType::kUint16;
  return open_tokens({folder.write("text.u16", token_bytes(tokens))}, wide);
}

std::vector<std::int64_t> tokens_of(const Dataset& part) {
  std::vector<std::int64_t> samples(static_cast<std::size_t>(part.size()));
  std::iota(samples.begin(), samples.end(), 0);
  Batch batch;
  part.read(samples, batch);
  return batch.tokens;
}

// No token of training within a sequence of one that is held out.
void expect_apart(const Parts& parts, std::int64_t sequence) {
  const std::vector<std::int64_t> held = tokens_of(*parts.held_out);
  const auto [first, last] = std::minmax_element(held.begin(), held.end());
  for (const std::int64_t token : tokens_of(*parts.train)) {
    EXPECT_TRUE(token < *first - sequence || token > *last + sequence)
        << token << " beside " << *first << " to " << *last;
  }
}

TEST(Folds, OfATextAreStretchesOfItThatTrainingKeepsAwayFrom) {
  const DataFolder folder;
  constexpr std::int64_t kSequence = 8;
  constexpr std::int64_t kLength = 701;
  for (const std::int64_t stride : {1, 3, 8, 11}) {
    const auto all = counting_text(folder, kLength, {.sequence = kSequence, .stride = stride});
    for (const int folds : {2, 4, 5}) {
      std::vector<int> predicted(kLength, 0);
      for (int fold = 0; fold < folds; ++fold) {
        SCOPED_TRACE("stride " + std::to_string(stride) + " fold " + std::to_string(fold));
        const Parts parts = fold_of(all, fold, folds, 9);
        EXPECT_EQ(parts.train->shape(), all->shape());
        expect_apart(parts, kSequence);
        const std::vector<std::int64_t> held = tokens_of(*parts.held_out);
        for (std::size_t i = 0; i < held.size(); ++i) {
          EXPECT_EQ(held[i] - held[0],
                    static_cast<std::int64_t>(i) - static_cast<std::int64_t>(i) / (kSequence + 1));
          predicted[static_cast<std::size_t>(held[i])] += i % (kSequence + 1) > 0 ? 1 : 0;
        }
        // All of the text but the fold, one sequence on each side, and less than a stride at each
        // end, is trained on.
        const std::vector<std::int64_t> trained = tokens_of(*parts.train);
        const std::set<std::int64_t> seen(trained.begin(), trained.end());
        if (stride <= kSequence) {
          EXPECT_GE(static_cast<std::int64_t>(seen.size()),
                    kLength - kLength / folds - 1 - 2 * kSequence - 2 * kSequence);
        }
      }
      // Each stretch loses its first token, and a tail that is shorter than a sample.
      EXPECT_EQ(std::count(predicted.begin(), predicted.end(), 0) +
                    std::count(predicted.begin(), predicted.end(), 1),
                kLength);
      EXPECT_LE(std::count(predicted.begin(), predicted.end(), 0), folds * kSequence);
    }
  }
  const auto all = counting_text(folder, 40, {.sequence = 16, .stride = 1});
  EXPECT_THROW(fold_of(all, 0, 5, 0), DataError);  // 8 tokens are no sample
}

TEST(HoldOut, OfATextIsItsEnd) {
  const DataFolder folder;
  const auto all = counting_text(folder, 500, {.sequence = 10, .stride = 1});
  const Parts parts = hold_out(all, 0.2, 4);
  expect_apart(parts, 10);
  const std::vector<std::int64_t> held = tokens_of(*parts.held_out);
  EXPECT_EQ(held.front(), 400);
  EXPECT_EQ(parts.held_out->size(), 9);  // 99 tokens to predict, 10 at a time
  // Of a part, whose text has a hole, as of a whole.
  const Parts fold = fold_of(all, 1, 4, 0);
  const Parts inner = hold_out(fold.train, 0.5, 0);
  expect_apart(inner, 10);
  EXPECT_GT(tokens_of(*inner.held_out).front(), 250);
}

// By what a sample holds, and by nothing else.
TEST(Fingerprints, AreThoseOfTheContentInEveryView) {
  const auto data = counted(50);
  std::set<std::uint64_t> different;
  for (std::int64_t i = 0; i < data->size(); ++i) {
    different.insert(data->fingerprint(i));
  }
  EXPECT_EQ(different.size(), 50U);
  const auto part = fold_of(data, 1, 5, 3).held_out;
  const std::vector<std::int64_t> seen = shown_by(*part);
  const auto view = standardised(part, statistics_of(*data, {feature_sums(*data, 0, 1)}));
  for (std::int64_t i = 0; i < part->size(); ++i) {
    EXPECT_EQ(part->fingerprint(i), data->fingerprint(seen[static_cast<std::size_t>(i)]));
    EXPECT_EQ(view->fingerprint(i), part->fingerprint(i));
  }
  // The same numbers with another label are another sample.
  const FormulaDataset other(50, {2}, 3, [](std::int64_t sample) { return (sample + 1) % 3; });
  EXPECT_NE(other.fingerprint(7), data->fingerprint(7));
  // Texts of one length.
  const DataFolder folder;
  const auto fingerprint_of = [&](const std::string& text) {
    return open_tokens({folder.write("text.txt", text)}, {.sequence = 4})->fingerprint(0);
  };
  EXPECT_EQ(fingerprint_of("abcdef"), fingerprint_of("abcdeX"));  // the last is in no sample
  EXPECT_NE(fingerprint_of("abcdef"), fingerprint_of("abcdXf"));
  EXPECT_NE(fingerprint_of("abcdef"), fingerprint_of("bacdef"));
}

// A large mean and a small spread, which naive sums of squares would lose; one column is constant.
float uneven(std::int64_t sample, std::int64_t place) {
  return place % 4 == 3 ? 7.25F
                        : 4096.0F * static_cast<float>(place + 1) +
                              static_cast<float>((sample * 31 + place * 17) % 64) / 64;
}

FeatureStatistics naive_statistics(std::int64_t size, std::int64_t features, std::int64_t values) {
  FeatureStatistics statistics;
  for (std::int64_t feature = 0; feature < features; ++feature) {
    long double mean = 0;
    long double variance = 0;
    const auto count = static_cast<long double>(size * values);
    for (std::int64_t sample = 0; sample < size; ++sample) {
      for (std::int64_t i = 0; i < values; ++i) {
        mean += uneven(sample, feature * values + i) / count;
      }
    }
    for (std::int64_t sample = 0; sample < size; ++sample) {
      for (std::int64_t i = 0; i < values; ++i) {
        const long double distance = uneven(sample, feature * values + i) - mean;
        variance += distance * distance / count;
      }
    }
    statistics.mean.push_back(static_cast<double>(mean));
    statistics.deviation.push_back(variance > 1e-12L ? static_cast<double>(std::sqrt(variance))
                                                     : 1);
  }
  return statistics;
}

TEST(Statistics, AreThoseOfTheWholeHoweverItIsDivided) {
  struct Case {
    std::vector<std::int64_t> dense;
    std::int64_t features;
    std::int64_t values;
  };
  for (const Case& c : {Case{{4}, 4, 1}, Case{{2, 2, 3}, 2, 6}}) {
    const FormulaDataset data(
        1001, c.dense, 2, [](std::int64_t) { return 0; }, uneven);
    const FeatureStatistics expected = naive_statistics(1001, c.features, c.values);
    for (const std::int64_t chunks : {1, 2, 7, 1001, 1500}) {
      std::vector<FeatureSums> sums;
      double count = 0;
      for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
        sums.push_back(feature_sums(data, chunk, chunks));
        count += sums.back().count[0];
      }
      EXPECT_EQ(count, static_cast<double>(1001 * c.values));
      const FeatureStatistics found = statistics_of(data, sums);
      ASSERT_EQ(found.mean.size(), static_cast<std::size_t>(c.features));
      for (std::size_t feature = 0; feature < found.mean.size(); ++feature) {
        EXPECT_NEAR(found.mean[feature], expected.mean[feature], 1e-9 * expected.mean[feature]);
        EXPECT_NEAR(found.deviation[feature],
                    expected.deviation[feature],
                    1e-7 * expected.deviation[feature]);
      }
    }
    EXPECT_THROW(feature_sums(data, 2, 2), ConfigError);
    EXPECT_THROW(statistics_of(data, {}), ConfigError);
  }
}

TEST(Statistics, MakeMeanZeroAndDeviationOne) {
  for (const std::vector<std::int64_t>& dense :
       {std::vector<std::int64_t>{3}, std::vector<std::int64_t>{3, 2, 2}}) {
    const auto data = std::make_shared<FormulaDataset>(
        500,
        dense,
        2,
        [](std::int64_t) { return 0; },
        [](std::int64_t sample, std::int64_t place) {
          return static_cast<float>((sample * 13 + place * 5) % 29) / 29 + 2.0F;
        });
    const auto view = standardised(data, statistics_of(*data, {feature_sums(*data, 0, 1)}));
    EXPECT_EQ(view->size(), 500);
    const FeatureStatistics after = statistics_of(*view, {feature_sums(*view, 0, 1)});
    for (std::size_t feature = 0; feature < 3; ++feature) {
      EXPECT_NEAR(
          after.mean[feature], 0, 1e-5);  // values of about 1 in float32, errors of 10^-7 each
      EXPECT_NEAR(after.deviation[feature], 1, 1e-5);
    }
  }
  const auto data = counted(5);
  EXPECT_THROW(standardised(data, {{0}, {1}}), ConfigError);
  EXPECT_THROW(standardised(data, {{0, 0}, {1, 0}}), ConfigError);
  const FormulaDataset constant(
      9, {1}, 2, [](std::int64_t) { return 0; }, [](std::int64_t, std::int64_t) { return 0.1F; });
  EXPECT_EQ(statistics_of(constant, {feature_sums(constant, 0, 1)}).deviation[0], 1);
}

}  // namespace
}  // namespace trireme
