#include <algorithm>
#include <cmath>
#include <limits>

#include "trireme/core/error.h"
#include "trireme/data/preprocessing.h"
#include "trireme/data/views.h"

namespace trireme {
namespace {

// Images [channels, rows, columns] have one feature per channel, with many values in each sample;
// flat samples have one per column.
struct FeatureLayout {
  std::int64_t features = 0;
  std::int64_t values = 0;  // of each feature in a sample, side by side
};

FeatureLayout features_of(const SampleShape& shape) {
  TRIREME_CHECK(shape.kind == SampleKind::kDense,
                "statistics need samples of numbers of one shape, found tokens or sparse samples");
  const std::int64_t features = shape.dense.at(0);
  return {features, shape.dense_numel() / features};
}

// A value near the others, so that squares do not cancel where a feature's spread is small beside
// its size: the first one of the first sample; of a feature that this sample lacks, of the next
// that has it; 0 where none has.
std::vector<double> centres_of(const Dataset& data) {
  const FeatureLayout layout = features_of(data.shape());
  Batch batch;
  std::vector<double> centres(static_cast<std::size_t>(layout.features),
                              std::numeric_limits<double>::quiet_NaN());
  auto lacking = centres.size();
  for (std::int64_t sample = 0; sample < data.size() && lacking > 0; ++sample) {
    data.read({&sample, 1}, batch);
    for (std::size_t feature = 0; feature < centres.size(); ++feature) {
      const double value = batch.dense[feature * static_cast<std::size_t>(layout.values)];
      if (std::isnan(centres[feature]) && !std::isnan(value)) {
        centres[feature] = value;
        --lacking;
      }
    }
  }
  for (double& centre : centres) {
    centre = std::isnan(centre) ? 0 : centre;
  }
  return centres;
}

// Flat samples whose missing values, NaN, are these.
class ImputedView final : public Dataset {
 public:
  ImputedView(std::shared_ptr<const Dataset> data, const std::vector<double>& values)
      : data_(std::move(data)), values_(values) {
    TRIREME_CHECK(data_->shape().kind == SampleKind::kDense && data_->shape().dense.size() == 1 &&
                      data_->shape().dense[0] == static_cast<std::int64_t>(values.size()),
                  "expected a value for each feature of flat samples, found ",
                  values.size());
    for (const double value : values) {
      TRIREME_CHECK(std::isfinite(value), "expected finite values to fill in, found ", value);
    }
  }

  std::int64_t size() const override { return data_->size(); }
  const SampleShape& shape() const override { return data_->shape(); }
  std::int64_t label(std::int64_t sample) const override { return data_->label(sample); }
  std::vector<std::string> class_names() const override { return data_->class_names(); }
  Preprocessing preprocessing() const override {
    Preprocessing all = data_->preprocessing();
    all.fill = values_;
    return all;
  }
  std::uint64_t fingerprint(std::int64_t sample) const override {
    return data_->fingerprint(sample);
  }

  void read(std::span<const std::int64_t> samples, Batch& batch) const override {
    data_->read(samples, batch);
    for (std::size_t i = 0; i < batch.dense.size(); ++i) {
      if (std::isnan(batch.dense[i])) {
        batch.dense[i] = static_cast<float>(values_[i % values_.size()]);
      }
    }
  }

 private:
  std::shared_ptr<const Dataset> data_;
  std::vector<double> values_;
};

class StandardisedView final : public Dataset {
 public:
  StandardisedView(std::shared_ptr<const Dataset> data, const FeatureStatistics& statistics)
      : data_(std::move(data)), layout_(features_of(data_->shape())), statistics_(statistics) {
    const auto features = static_cast<std::size_t>(layout_.features);
    TRIREME_CHECK(statistics.mean.size() == features && statistics.deviation.size() == features,
                  "expected statistics of {} features (of each channel, for images), found {} "
                  "means and {} deviations",
                  {features, statistics.mean.size(), statistics.deviation.size()});
    for (std::size_t feature = 0; feature < features; ++feature) {
      TRIREME_CHECK(std::isfinite(statistics.mean[feature]) &&
                        std::isfinite(statistics.deviation[feature]) &&
                        statistics.deviation[feature] > 0,
                    "expected finite means and deviations above 0, found {} and {} for feature {}",
                    {statistics.mean[feature], statistics.deviation[feature], feature});
      mean_.push_back(static_cast<float>(statistics.mean[feature]));
      scale_.push_back(static_cast<float>(1 / statistics.deviation[feature]));
    }
  }

  std::int64_t size() const override { return data_->size(); }
  const SampleShape& shape() const override { return data_->shape(); }
  std::int64_t label(std::int64_t sample) const override { return data_->label(sample); }
  std::vector<std::string> class_names() const override { return data_->class_names(); }
  Preprocessing preprocessing() const override {
    Preprocessing all = data_->preprocessing();
    all.normalisation = statistics_;
    return all;
  }
  std::vector<float> background() const override {
    const std::vector<float> before = data_->background();
    std::vector<float> values;
    for (std::size_t feature = 0; feature < mean_.size(); ++feature) {
      const float value = before.empty() ? 0 : before[feature];
      values.push_back((value - mean_[feature]) * scale_[feature]);
    }
    return values;
  }
  std::uint64_t fingerprint(std::int64_t sample) const override {
    return data_->fingerprint(sample);
  }

  void read(std::span<const std::int64_t> samples, Batch& batch) const override {
    data_->read(samples, batch);
    float* value = batch.dense.data();
    for (std::size_t sample = 0; sample < samples.size(); ++sample) {
      if (layout_.values == 1) {
        for (std::size_t feature = 0; feature < mean_.size(); ++feature) {
          value[feature] = (value[feature] - mean_[feature]) * scale_[feature];
        }
        value += mean_.size();
        continue;
      }
      for (std::size_t feature = 0; feature < mean_.size(); ++feature) {
        for (std::int64_t i = 0; i < layout_.values; ++i) {
          value[i] = (value[i] - mean_[feature]) * scale_[feature];
        }
        value += layout_.values;
      }
    }
  }

 private:
  std::shared_ptr<const Dataset> data_;
  FeatureLayout layout_;
  FeatureStatistics statistics_;
  std::vector<float> mean_;
  std::vector<float> scale_;
};

}  // namespace

FeatureSums feature_sums(const Dataset& data, std::int64_t chunk, std::int64_t chunks) {
  const FeatureLayout layout = features_of(data.shape());
  TRIREME_CHECK(chunks >= 1 && chunk >= 0 && chunk < chunks,
                "the chunk must be from 0 to {}, found {}",
                {chunks - 1, chunk});
  const std::vector<double> centres = centres_of(data);
  FeatureSums sums;
  sums.count.assign(centres.size(), 0);
  sums.sum.assign(centres.size(), 0);
  sums.square_sum.assign(centres.size(), 0);
  const std::int64_t end = data.size() * (chunk + 1) / chunks;
  constexpr std::int64_t kBlock = 256;  // samples read at a time; the order of sums ignores it
  Batch batch;
  std::vector<std::int64_t> samples;
  for (std::int64_t at = data.size() * chunk / chunks; at < end; at += kBlock) {
    samples.clear();
    for (std::int64_t sample = at; sample < std::min(end, at + kBlock); ++sample) {
      samples.push_back(sample);
    }
    data.read(samples, batch);
    const float* value = batch.dense.data();
    for (std::size_t row = 0; row < samples.size(); ++row) {
      for (std::size_t feature = 0; feature < centres.size(); ++feature) {
        if (layout.values == 1 && std::isnan(*value)) {  // it is missing
          ++value;
          continue;
        }
        double sum = 0;
        double square_sum = 0;
        for (std::int64_t i = 0; i < layout.values; ++i) {
          const double distance = value[i] - centres[feature];
          sum += distance;
          square_sum += distance * distance;
        }
        value += layout.values;
        sums.count[feature] += static_cast<double>(layout.values);
        sums.sum[feature] += sum;
        sums.square_sum[feature] += square_sum;
      }
    }
  }
  return sums;
}

FeatureStatistics statistics_of(const Dataset& data, const std::vector<FeatureSums>& in_order) {
  const std::vector<double> centres = centres_of(data);
  FeatureStatistics statistics;
  for (std::size_t feature = 0; feature < centres.size(); ++feature) {
    double count = 0;
    double sum = 0;
    double square_sum = 0;
    for (const FeatureSums& sums : in_order) {
      count += sums.count.at(feature);
      sum += sums.sum.at(feature);
      square_sum += sums.square_sum.at(feature);
    }
    TRIREME_CHECK(count > 0, "statistics need the sums of at least one sample, found none");
    const double distance = sum / count;  // of the mean from the centre
    const double variance = square_sum / count - distance * distance;
    statistics.mean.push_back(centres[feature] + distance);
    statistics.deviation.push_back(variance > 0 ? std::sqrt(variance) : 1);
  }
  return statistics;
}

std::shared_ptr<Dataset> imputed(std::shared_ptr<const Dataset> data,
                                 const std::vector<double>& values) {
  return std::make_shared<ImputedView>(std::move(data), values);
}

std::shared_ptr<Dataset> standardised(std::shared_ptr<const Dataset> data,
                                      const FeatureStatistics& statistics) {
  return std::make_shared<StandardisedView>(std::move(data), statistics);
}

}  // namespace trireme
