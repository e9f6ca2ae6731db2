#pragma once

#include <memory>
#include <vector>

#include "trireme/data/dataset.h"

// Datasets made of others; none copies samples.

namespace trireme {

struct Parts {
  std::shared_ptr<const Dataset> train;
  std::shared_ptr<const Dataset> held_out;
};

// A random part of the samples (`fraction` of them, at least one, chosen by `seed`) held out. Takes
// no memory per sample. Of tokens, whose samples overlap or stand side by side in one text, it is
// the end of the text, each token of it predicted once, and one sequence before it is left out.
Parts hold_out(std::shared_ptr<const Dataset> all, double fraction, std::uint64_t seed);

// k-fold cross-validation: fold `fold` of `folds` held out. Every sample is held out by exactly one
// fold; sizes differ by at most one. Takes no memory per sample. Of tokens, a fold is a stretch of
// the text, whatever the seed: each of its tokens is predicted once, and training keeps one
// sequence away from it on both sides.
Parts fold_of(std::shared_ptr<const Dataset> all, int fold, int folds, std::uint64_t seed);

// Mean and standard deviation of each feature of a dense dataset (of each channel, for images).
struct FeatureStatistics {
  std::vector<double> mean;
  std::vector<double> deviation;  // 1 where a feature does not vary
};

// The sums from which statistics come, of one of `chunks` equal parts of the samples. Whoever adds
// the parts up in order 0, 1, ... gets the same bits, whichever rank computed which: each entry is
// the count of numbers, their sum and the sum of their squares about `centre` (the first sample's
// values), per feature.
struct FeatureSums {
  std::vector<double> count;
  std::vector<double> sum;
  std::vector<double> square_sum;
};
FeatureSums feature_sums(const Dataset& data, std::int64_t chunk, std::int64_t chunks);
FeatureStatistics statistics_of(const Dataset& data, const std::vector<FeatureSums>& in_order);

// Missing values (NaN) are left out of the sums. These are put in their place: one per feature.
std::shared_ptr<Dataset> imputed(std::shared_ptr<const Dataset> data,
                                 const std::vector<double>& values);

// (x - mean) / deviation.
std::shared_ptr<Dataset> standardised(std::shared_ptr<const Dataset> data,
                                      const FeatureStatistics& statistics);

// Flat samples of numbers (a table) as (index, value) pairs, without the zeros.
std::shared_ptr<Dataset> sparse_rows(std::shared_ptr<const Dataset> data);

}  // namespace trireme
