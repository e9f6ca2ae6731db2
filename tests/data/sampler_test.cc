#include "trireme/data/sampler.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "data/formula_dataset.h"
#include "trireme/core/error.h"

namespace trireme {
namespace {

using testing::FormulaDataset;
using Samples = std::vector<std::int64_t>;

constexpr std::int64_t kClasses = 4;

// Class 0 has half of the samples, class 1 a quarter, class 2 an eighth, class 3 the rest.
std::int64_t uneven_class(std::int64_t sample) {
  const std::int64_t place = sample % 8;
  return place < 4 ? 0 : place < 6 ? 1 : place < 7 ? 2 : 3;
}

std::shared_ptr<const Dataset> dataset(std::int64_t size) {
  return std::make_shared<FormulaDataset>(size, Samples{1}, kClasses, uneven_class);
}

Samples take(const Sampler& sampler,
             DataPosition position,
             std::int64_t micro_batch,
             std::int64_t samples) {
  Samples out{-1};  // is replaced
  sampler.fill(position, micro_batch, samples, out);
  EXPECT_EQ(static_cast<std::int64_t>(out.size()), samples);
  return out;
}

// The samples of one step, micro-batch after micro-batch.
Samples step(const Sampler& sampler,
             DataPosition position,
             std::int64_t micro_batches,
             std::int64_t samples) {
  Samples all;
  for (std::int64_t m = 0; m < micro_batches; ++m) {
    const Samples here = take(sampler, position, m, samples);
    all.insert(all.end(), here.begin(), here.end());
  }
  return all;
}

void expect_all_once(Samples samples, std::int64_t size) {
  std::sort(samples.begin(), samples.end());
  ASSERT_EQ(static_cast<std::int64_t>(samples.size()), size);
  for (std::int64_t i = 0; i < size; ++i) {
    EXPECT_EQ(samples[static_cast<std::size_t>(i)], i);
  }
}

TEST(Sampler, TakesEverySampleOnceInEachEpoch) {
  for (const std::int64_t n : {1, 2, 3, 7, 64, 65, 101, 1024, 1025}) {
    for (const Sampling sampling : {Sampling::kShuffled, Sampling::kSequential}) {
      const Sampler sampler(dataset(n), {.seed = 5, .sampling = sampling});
      EXPECT_EQ(sampler.epoch_samples(), n);
      // Three epochs in steps that do not divide them.
      const Samples stream = take(sampler, 0, 0, 3 * n);
      Samples in_steps;
      for (DataPosition position = 0; position < 3 * n; position += 3) {
        const Samples here = take(sampler, position, 0, 3);
        in_steps.insert(in_steps.end(), here.begin(), here.end());
      }
      in_steps.resize(static_cast<std::size_t>(3 * n));
      EXPECT_EQ(in_steps, stream);
      for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
        const auto begin = stream.begin() + epoch * n;
        expect_all_once({begin, begin + n}, n);
      }
      if (n > 60) {
        const bool same = std::equal(stream.begin(), stream.begin() + n, stream.begin() + n);
        EXPECT_EQ(same, sampling == Sampling::kSequential);
      }
    }
  }
}

TEST(Sampler, SequentialIsTheOrderOfTheFile) {
  const Sampler sampler(dataset(5), {.sampling = Sampling::kSequential});
  EXPECT_EQ(take(sampler, 3, 1, 4), (Samples{2, 3, 4, 0}));
}

TEST(Sampler, FollowsFromItsSeed) {
  const auto order = [](std::uint64_t seed) {
    return take(Sampler(dataset(100), {.seed = seed}), 0, 0, 100);
  };
  EXPECT_EQ(order(1), order(1));
  EXPECT_NE(order(1), order(2));
}

// A step's samples do not depend on how it is cut into micro-batches.
TEST(Sampler, GivesAStepTheSameSamplesHoweverItIsCut) {
  for (const Sampling sampling :
       {Sampling::kShuffled, Sampling::kSequential, Sampling::kBalanced, Sampling::kWeighted}) {
    const Sampler sampler(dataset(37),
                          {.seed = 3, .sampling = sampling, .class_weights = {1, 2, 3, 4}});
    for (const DataPosition position : {0, 8, 32, 40, 1000}) {  // 32: over the end of an epoch
      const Samples whole = step(sampler, position, 1, 8);
      for (const std::int64_t samples : {1, 2, 4}) {
        EXPECT_EQ(step(sampler, position, 8 / samples, samples), whole);
      }
    }
  }
}

// The position is all there is to save: going on from it, also with another batch size, is as if
// there had been no break.
TEST(Sampler, ContinuesFromAPositionAsIfUninterrupted) {
  const Sampler first(dataset(50), {.seed = 8});
  const Samples uninterrupted = take(first, 0, 0, 120);
  Samples pieces = step(first, 0, 3, 8);
  const Sampler later(dataset(50), {.seed = 8});
  for (const auto& [position, micro_batches, samples] :
       {std::tuple{24, 4, 9}, std::tuple{60, 1, 20}, std::tuple{80, 2, 20}}) {
    const Samples here = step(later, position, micro_batches, samples);
    pieces.insert(pieces.end(), here.begin(), here.end());
  }
  EXPECT_EQ(pieces, uninterrupted);
  EXPECT_DOUBLE_EQ(first.epoch_at(75), 1.5);
}

TEST(Sampler, HashSharesAreDisjointCompleteAndStable) {
  const std::int64_t n = 1000;
  std::vector<Samples> of_seed;
  for (const std::uint64_t seed : {1, 2}) {
    const Sampler sampler(dataset(n), {.seed = seed, .partition = Partition::kHash, .shares = 3});
    const auto content = sampler.class_content();
    ASSERT_EQ(content.size(), 3U);
    Samples share_of(static_cast<std::size_t>(n), -1);
    std::int64_t longest = 0;
    for (std::int64_t share = 0; share < 3; ++share) {
      std::int64_t size = 0;
      for (const std::int64_t count : content[static_cast<std::size_t>(share)]) {
        size += count;
      }
      // Binomial with mean 333 and deviation 15.
      EXPECT_NEAR(static_cast<double>(size), 1000.0 / 3, 6 * 15.0);
      longest = std::max(longest, size);
      std::vector<std::int64_t> counts(kClasses, 0);
      for (const std::int64_t sample : take(sampler, 0, share, size)) {
        EXPECT_EQ(share_of[static_cast<std::size_t>(sample)], -1);
        share_of[static_cast<std::size_t>(sample)] = share;
        ++counts[static_cast<std::size_t>(uneven_class(sample))];
      }
      EXPECT_EQ(counts, content[static_cast<std::size_t>(share)]);
    }
    EXPECT_EQ(std::count(share_of.begin(), share_of.end(), -1), 0);
    EXPECT_EQ(sampler.epoch_samples(), 3 * longest);
    of_seed.push_back(share_of);
  }
  EXPECT_EQ(of_seed[0], of_seed[1]);
}

// Two shares, even and odd samples; four micro-batches, so each share has two of each step.
TEST(Sampler, DealsEachShareToItsMicroBatches) {
  const SamplerOptions options{
      .seed = 1, .partition = Partition::kCustom, .shares = 2, .share_of = [](std::int64_t sample) {
        return sample % 2;
      }};
  const std::int64_t n = 24;
  const Sampler sampler(dataset(n), options);
  EXPECT_EQ(sampler.epoch_samples(), n);
  Samples seen;
  for (DataPosition position = 0; position < n; position += 8) {  // 4 micro-batches of 2
    for (std::int64_t m = 0; m < 4; ++m) {
      for (const std::int64_t sample : take(sampler, position, m, 2)) {
        EXPECT_EQ(sample % 2, m % 2);
        seen.push_back(sample);
      }
    }
  }
  expect_all_once(seen, n);
  // With one micro-batch per share and twice the samples, each share has the same samples.
  const Samples cut = take(sampler, 8, 1, 2);
  const Samples cut_more = take(sampler, 8, 3, 2);
  Samples both = cut;
  both.insert(both.end(), cut_more.begin(), cut_more.end());
  EXPECT_EQ(take(sampler, 8, 1, 4), both);
}

TEST(Sampler, StartsAShortShareAgainInANewOrder) {
  const SamplerOptions options{
      .seed = 1, .partition = Partition::kCustom, .shares = 2, .share_of = [](std::int64_t sample) {
        return sample < 20 ? std::int64_t{0} : 1;
      }};
  const Sampler sampler(dataset(100), options);
  EXPECT_EQ(sampler.epoch_samples(), 160);
  const Samples short_share = take(sampler, 0, 0, 40);
  const Samples first(short_share.begin(), short_share.begin() + 20);
  const Samples second(short_share.begin() + 20, short_share.end());
  expect_all_once(first, 20);
  expect_all_once(second, 20);
  EXPECT_NE(first, second);
  const auto content = sampler.class_content();
  EXPECT_EQ(content[0], (Samples{12, 4, 2, 2}));  // 20 samples: two and a half rounds of eight
}

// Counts of a class are binomial with k draws and chance p; five deviations are exceeded once in
// three million.
void expect_frequencies(const std::map<std::int64_t, std::int64_t>& counts,
                        const std::vector<double>& chances,
                        std::int64_t draws) {
  const auto k = static_cast<double>(draws);
  for (std::size_t label = 0; label < chances.size(); ++label) {
    const double p = chances[label];
    const auto found = counts.find(static_cast<std::int64_t>(label));
    const double count = found == counts.end() ? 0 : static_cast<double>(found->second);
    EXPECT_NEAR(count, k * p, 5 * std::sqrt(k * p * (1 - p))) << "class " << label;
  }
}

TEST(Sampler, DrawsClassesInTheirProportions) {
  constexpr std::int64_t kDraws = 40000;
  struct Case {
    Sampling sampling;
    std::vector<double> weights;
    std::vector<double> chances;
  };
  for (const Case& c : {Case{Sampling::kBalanced, {}, {0.25, 0.25, 0.25, 0.25}},
                        Case{Sampling::kWeighted, {2, 0, 1, 5}, {0.25, 0, 0.125, 0.625}}}) {
    for (const std::int64_t shares : {1, 2}) {
      SamplerOptions options{.seed = 11, .sampling = c.sampling, .class_weights = c.weights};
      options.partition = shares == 1 ? Partition::kUniform : Partition::kHash;
      options.shares = shares;
      const Sampler sampler(dataset(800), options);
      std::vector<std::set<std::int64_t>> seen(static_cast<std::size_t>(shares));
      for (std::int64_t share = 0; share < shares; ++share) {
        std::map<std::int64_t, std::int64_t> counts;
        std::map<std::int64_t, std::int64_t> per_sample;
        for (const std::int64_t sample : take(sampler, 160, share, kDraws)) {
          ++counts[uneven_class(sample)];
          ++per_sample[sample];
          seen[static_cast<std::size_t>(share)].insert(sample);
        }
        expect_frequencies(counts, c.chances, kDraws);
        // Within a class all samples are alike.
        const auto content = sampler.class_content()[static_cast<std::size_t>(share)];
        for (const auto& [sample, count] : per_sample) {
          const auto label = static_cast<std::size_t>(uneven_class(sample));
          const double mean = kDraws * c.chances[label] / static_cast<double>(content[label]);
          EXPECT_NEAR(static_cast<double>(count), mean, 6 * std::sqrt(mean));
        }
      }
      if (shares == 2) {
        for (const std::int64_t sample : seen[0]) {
          EXPECT_EQ(seen[1].count(sample), 0U);
        }
      }
    }
  }
}

TEST(Sampler, SharesThatLackAClassDrawTheOthers) {
  SamplerOptions options{
      .sampling = Sampling::kBalanced, .partition = Partition::kCustom, .shares = 2};
  options.share_of = [](std::int64_t sample) { return uneven_class(sample) == 0 ? 0 : 1; };
  const Sampler sampler(dataset(80), options);
  std::map<std::int64_t, std::int64_t> counts;
  for (const std::int64_t sample : take(sampler, 0, 1, 9000)) {
    ++counts[uneven_class(sample)];
  }
  expect_frequencies(counts, {0, 1.0 / 3, 1.0 / 3, 1.0 / 3}, 9000);
  options.sampling = Sampling::kWeighted;
  options.class_weights = {0, 1, 1, 1};  // share 0 has class 0 only
  EXPECT_THROW(Sampler(dataset(80), options), ConfigError);
}

TEST(Sampler, RefusesWhatTheDataCannotServe) {
  const auto refused = [](const std::shared_ptr<const Dataset>& data,
                          const SamplerOptions& options) {
    EXPECT_THROW(Sampler(data, options), ConfigError);
  };
  const auto unlabelled =
      std::make_shared<FormulaDataset>(9, Samples{1}, 0, [](std::int64_t) { return 0; });
  refused(unlabelled, {.sampling = Sampling::kBalanced});
  EXPECT_TRUE(Sampler(unlabelled, {}).class_content().empty());
  refused(dataset(0), {});
  refused(dataset(9), {.sampling = Sampling::kWeighted, .class_weights = {1, 1}});
  refused(dataset(9), {.sampling = Sampling::kWeighted, .class_weights = {1, 1, -1, 1}});
  refused(dataset(9), {.sampling = Sampling::kWeighted, .class_weights = {0, 0, 0, 0}});
  refused(dataset(9), {.shares = 2});
  refused(dataset(9), {.partition = Partition::kCustom, .shares = 2});
  refused(dataset(1), {.partition = Partition::kHash, .shares = 2});
  for (const std::int64_t share : {-1, 2}) {
    refused(dataset(9),
            {.partition = Partition::kCustom, .shares = 2, .share_of = [share](std::int64_t) {
               return share;
             }});
  }
  Samples out;
  EXPECT_THROW(Sampler(dataset(9), {}).fill(-1, 0, 1, out), ConfigError);
}

}  // namespace
}  // namespace trireme
