// What is done to data before training: each feature standardised by statistics of all samples.

#include <algorithm>

#include "trireme/core/error.h"
#include "trireme/train/trainer.h"

namespace trireme {
namespace {

// Chunks in which the statistics of features are computed, whatever the number of ranks.
constexpr std::int64_t kStatisticsChunks = 64;

}  // namespace

Parts prepared(const TrainSettings& settings, const Parts& data, Communicator& ranks) {
  if (settings.normalise != "standard") {
    return data;
  }
  TRIREME_CHECK(data.train->shape().kind == SampleKind::kDense,
                "normalise: only dense numbers have a mean, found another kind of data");
  // Every chunk is computed by one rank; the others' entries are 0, so the sums are exact.
  std::vector<FeatureSums> sums(static_cast<std::size_t>(kStatisticsChunks));
  std::vector<double> flat;
  std::size_t features = 0;
  for (std::int64_t chunk = 0; chunk < kStatisticsChunks; ++chunk) {
    if (chunk % ranks.size() == ranks.rank()) {
      sums[static_cast<std::size_t>(chunk)] = feature_sums(*data.train, chunk, kStatisticsChunks);
      features = sums[static_cast<std::size_t>(chunk)].sum.size();
    }
  }
  std::vector<std::int64_t> agreed = {static_cast<std::int64_t>(features)};
  ranks.all_reduce(agreed, ReduceOp::kMax).wait();
  features = static_cast<std::size_t>(agreed[0]);
  for (FeatureSums& part : sums) {
    for (std::vector<double>* values : {&part.count, &part.sum, &part.square_sum}) {
      values->resize(features, 0);
      flat.insert(flat.end(), values->begin(), values->end());
    }
  }
  ranks.all_reduce(flat).wait();
  auto at = flat.begin();
  for (FeatureSums& part : sums) {
    for (std::vector<double>* values : {&part.count, &part.sum, &part.square_sum}) {
      std::copy_n(at, features, values->begin());
      at += static_cast<std::ptrdiff_t>(features);
    }
  }
  const FeatureStatistics statistics = statistics_of(*data.train, sums);
  return {standardised(data.train, statistics),
          data.held_out ? standardised(data.held_out, statistics) : nullptr};
}

}  // namespace trireme
