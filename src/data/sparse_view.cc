#include "trireme/core/error.h"
#include "trireme/data/preprocessing.h"
#include "trireme/data/views.h"

namespace trireme {
namespace {

// Flat samples of numbers as their pairs: zeros are left out.
class SparseView final : public Dataset {
 public:
  explicit SparseView(std::shared_ptr<const Dataset> data) : data_(std::move(data)) {
    shape_ = data_->shape();
    TRIREME_CHECK(shape_.kind == SampleKind::kDense && shape_.dense.size() == 1,
                  "expected flat samples of numbers (a table) to leave the zeros out of, found ",
                  shape_.kind == SampleKind::kDense    ? "images"
                  : shape_.kind == SampleKind::kTokens ? "tokens"
                                                       : "sparse samples");
    shape_.kind = SampleKind::kSparse;
    shape_.features = shape_.dense[0];
    shape_.dense.clear();
  }

  std::int64_t size() const override { return data_->size(); }
  const SampleShape& shape() const override { return shape_; }
  std::int64_t label(std::int64_t sample) const override { return data_->label(sample); }
  std::vector<std::string> class_names() const override { return data_->class_names(); }
  Preprocessing preprocessing() const override {
    Preprocessing all = data_->preprocessing();
    all.shape = shape_;
    return all;
  }
  std::uint64_t fingerprint(std::int64_t sample) const override {
    return data_->fingerprint(sample);
  }

  void read(std::span<const std::int64_t> samples, Batch& batch) const override {
    data_->read(samples, batch);
    batch.offsets.assign(1, 0);
    batch.indices.clear();
    batch.values.clear();
    const float* value = batch.dense.data();
    for (std::size_t sample = 0; sample < samples.size(); ++sample) {
      for (std::int64_t feature = 0; feature < shape_.features; ++feature, ++value) {
        if (*value != 0) {
          batch.indices.push_back(feature);
          batch.values.push_back(*value);
        }
      }
      batch.offsets.push_back(static_cast<std::int64_t>(batch.indices.size()));
    }
    batch.dense.clear();
  }

 private:
  std::shared_ptr<const Dataset> data_;
  SampleShape shape_;
};

}  // namespace

std::shared_ptr<Dataset> sparse_rows(std::shared_ptr<const Dataset> data) {
  return std::make_shared<SparseView>(std::move(data));
}

}  // namespace trireme
