#pragma once

#include <functional>
#include <utility>

#include "trireme/data/dataset.h"

namespace trireme::testing {

// Samples from formulas: any number of them, of any dense shape.
class FormulaDataset : public Dataset {
 public:
  using Value = std::function<float(std::int64_t sample, std::int64_t place)>;
  using Label = std::function<std::int64_t(std::int64_t sample)>;

  FormulaDataset(
      std::int64_t size,
      std::vector<std::int64_t> dense,
      std::int64_t classes,
      Label label,
      Value value = [](std::int64_t sample, std::int64_t) { return static_cast<float>(sample); })
      : size_(size), label_(std::move(label)), value_(std::move(value)) {
    shape_.dense = std::move(dense);
    shape_.classes = classes;
  }

  std::int64_t size() const override { return size_; }
  const SampleShape& shape() const override { return shape_; }
  std::int64_t label(std::int64_t sample) const override { return label_(sample); }

  void read(std::span<const std::int64_t> samples, Batch& batch) const override {
    batch = Batch{};
    batch.samples = static_cast<std::int64_t>(samples.size());
    for (const std::int64_t sample : samples) {
      batch.ids.push_back(sample);
      batch.labels.push_back(label_(sample));
      for (std::int64_t place = 0; place < shape_.dense_numel(); ++place) {
        batch.dense.push_back(value_(sample, place));
      }
    }
  }

 private:
  std::int64_t size_;
  SampleShape shape_{};
  Label label_;
  Value value_;
};

}  // namespace trireme::testing
