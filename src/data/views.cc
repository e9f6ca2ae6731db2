#include "trireme/data/views.h"

#include <algorithm>
#include <cmath>

#include "data/batch_layout.h"
#include "data/contiguous.h"
#include "data/permutation.h"
#include "trireme/core/error.h"
#include "trireme/data/preprocessing.h"

namespace trireme {
namespace {

// Some of the places of a random order of another dataset's samples: all but a gap, [gap, gap +
// skip).
class PartView final : public Dataset {
 public:
  PartView(std::shared_ptr<const Dataset> all,
           const detail::Permutation& order,
           std::int64_t size,
           std::int64_t gap,
           std::int64_t skip)
      : all_(std::move(all)), order_(order), size_(size), gap_(gap), skip_(skip) {}

  std::int64_t size() const override { return size_; }
  const SampleShape& shape() const override { return all_->shape(); }
  std::int64_t label(std::int64_t sample) const override { return all_->label(original(sample)); }

  std::vector<std::string> class_names() const override { return all_->class_names(); }
  Preprocessing preprocessing() const override { return all_->preprocessing(); }
  std::vector<float> background() const override { return all_->background(); }
  std::uint64_t fingerprint(std::int64_t sample) const override {
    return all_->fingerprint(original(sample));
  }

  void read(std::span<const std::int64_t> samples, Batch& batch) const override {
    std::vector<std::int64_t> originals;
    originals.reserve(samples.size());
    for (const std::int64_t sample : samples) {
      originals.push_back(original(sample));
    }
    all_->read(originals, batch);
    batch.ids.assign(samples.begin(), samples.end());
  }

 private:
  std::int64_t original(std::int64_t sample) const {
    detail::check_sample(sample, size_);
    return order_.at(sample < gap_ ? sample : sample + skip_);
  }

  std::shared_ptr<const Dataset> all_;
  detail::Permutation order_;
  std::int64_t size_;
  std::int64_t gap_;
  std::int64_t skip_;
};

Parts divide(std::shared_ptr<const Dataset> all,
             std::int64_t held_begin,
             std::int64_t held_end,
             std::uint64_t seed) {
  const std::int64_t held = held_end - held_begin;
  const detail::Permutation order(all->size(), mix(seed, 0x686f6c64));  // "hold"
  auto train = std::make_shared<PartView>(all, order, all->size() - held, held_begin, held);
  return {std::move(train), std::make_shared<PartView>(std::move(all), order, held, 0, held_begin)};
}

}  // namespace

Parts hold_out(std::shared_ptr<const Dataset> all, double fraction, std::uint64_t seed) {
  TRIREME_CHECK(fraction > 0 && fraction < 1,
                "the fraction held out must be above 0 and below 1, found ",
                fraction);
  if (const auto* text = dynamic_cast<const detail::ContiguousDataset*>(all.get())) {
    return text->hold_out_stretch(1 - fraction, 1);
  }
  const std::int64_t n = all->size();
  TRIREME_CHECK(n >= 2, "holding out a part needs at least 2 samples, found ", n);
  const std::int64_t held =
      std::clamp<std::int64_t>(std::llround(fraction * static_cast<double>(n)), 1, n - 1);
  return divide(std::move(all), 0, held, seed);
}

Parts fold_of(std::shared_ptr<const Dataset> all, int fold, int folds, std::uint64_t seed) {
  const std::int64_t n = all->size();
  TRIREME_CHECK(folds >= 2 && folds <= n,
                "cross-validation needs from 2 folds to one per sample ({}), found {}",
                {n, folds});
  TRIREME_CHECK(
      fold >= 0 && fold < folds, "the fold must be from 0 to ", folds - 1, ", found ", fold);
  if (const auto* text = dynamic_cast<const detail::ContiguousDataset*>(all.get())) {
    const double count = folds;
    return text->hold_out_stretch(fold / count, (fold + 1) / count);
  }
  return divide(std::move(all), n * fold / folds, n * (fold + 1) / folds, seed);
}

}  // namespace trireme
