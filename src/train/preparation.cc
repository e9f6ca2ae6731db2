// What is done to data before training: missing values filled in and each feature standardised, by
// statistics of all samples to train on.

#include <algorithm>

#include "trireme/core/error.h"
#include "trireme/data/preprocessing.h"
#include "trireme/settings/model_kinds.h"
#include "trireme/train/trainer.h"

namespace trireme {
namespace {

// Chunks in which the statistics of features are computed, whatever the number of ranks.
constexpr std::int64_t kStatisticsChunks = 64;

// The sums of all chunks, on every rank.
std::vector<FeatureSums> sums_of(const Dataset& data, Communicator& ranks) {
  // Every chunk is computed by one rank; the others' entries are 0, so the sums are exact.
  std::vector<FeatureSums> sums(static_cast<std::size_t>(kStatisticsChunks));
  std::vector<double> flat;
  std::size_t features = 0;
  for (std::int64_t chunk = 0; chunk < kStatisticsChunks; ++chunk) {
    if (chunk % ranks.size() == ranks.rank()) {
      sums[static_cast<std::size_t>(chunk)] = feature_sums(data, chunk, kStatisticsChunks);
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
  return sums;
}

// The column that a feature comes from.
std::string column_of(const Preprocessing& table, std::int64_t feature) {
  for (std::size_t i = 0; i < table.columns.size(); ++i) {
    const TableColumn& column = table.columns[i];
    if (static_cast<std::int64_t>(i) == table.target) {
      continue;
    }
    feature -= column.categorical ? static_cast<std::int64_t>(column.categories.size()) : 1;
    if (feature < 0) {
      return column.name.empty() ? detail::concat("number ", i, " (from 0)")
                                 : detail::concat('"', column.name, '"');
    }
  }
  return "?";
}

void check_values(const Dataset& data, const std::vector<FeatureSums>& sums) {
  for (std::size_t feature = 0; feature < sums[0].count.size(); ++feature) {
    const bool any = std::any_of(
        sums.begin(), sums.end(), [&](const FeatureSums& part) { return part.count[feature] > 0; });
    TRIREME_CHECK(any,
                  "missing: the column {} has no value in any sample to train on, and so no mean: "
                  "leave the column out, or use --missing zero",
                  {column_of(data.preprocessing(), static_cast<std::int64_t>(feature))});
  }
}

}  // namespace

Parts prepared(const TrainSettings& settings, const Parts& data, Communicator& ranks) {
  Parts parts = data;
  if (settings.missing == CsvOptions::Missing::kNan) {
    const std::vector<FeatureSums> sums = sums_of(*parts.train, ranks);
    check_values(*parts.train, sums);
    const std::vector<double> means = statistics_of(*parts.train, sums).mean;
    parts = {imputed(parts.train, means),
             parts.held_out ? imputed(parts.held_out, means) : nullptr};
  }
  // A model of sparse features reads a table without its zeros.
  const SampleShape& shape = parts.train->shape();
  if (!settings.model.empty() && model_kind(settings.model).samples == SampleKind::kSparse &&
      shape.kind == SampleKind::kDense && shape.dense.size() == 1) {
    return {sparse_rows(parts.train), parts.held_out ? sparse_rows(parts.held_out) : nullptr};
  }
  if (settings.normalise == Normalise::kNone) {
    return parts;
  }
  TRIREME_CHECK(parts.train->shape().kind == SampleKind::kDense,
                "normalise: only dense numbers have a mean, found another kind of data");
  const FeatureStatistics statistics = statistics_of(*parts.train, sums_of(*parts.train, ranks));
  return {standardised(parts.train, statistics),
          parts.held_out ? standardised(parts.held_out, statistics) : nullptr};
}

}  // namespace trireme
