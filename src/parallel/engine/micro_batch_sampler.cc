#include "trireme/parallel/micro_batch_sampler.h"

#include <numeric>

#include <torch/serialize/archive.h>

#include "trireme/core/error.h"
#include "trireme/core/random.h"

namespace trireme {

MicroBatchSampler::MicroBatchSampler(std::size_t samples, const EngineBase& engine, Options options)
    : samples_(samples), engine_(&engine), options_(options) {}

void MicroBatchSampler::reset(torch::optional<std::size_t> new_size) {
  samples_ = new_size.value_or(samples_);
  ++epoch_;
  begin_epoch();
}

void MicroBatchSampler::begin_epoch() {
  given_ = 0;
  order_.resize(samples_);
  std::iota(order_.begin(), order_.end(), std::size_t{0});
  if (options_.shuffle) {  // Fisher and Yates
    RandomStream random(mix(options_.seed, static_cast<std::uint64_t>(epoch_)));
    for (std::size_t left = samples_; left > 1; --left) {
      std::swap(order_[left - 1], order_[random.below(left)]);
    }
  }
  per_step_ = static_cast<std::size_t>(engine_->micro_batches());
  numbers_.clear();
  for (std::int64_t k = 0; k < engine_->local_micro_batches(); ++k) {
    numbers_.push_back(static_cast<std::size_t>(engine_->micro_batch(k)));
  }
}

torch::optional<std::vector<std::size_t>> MicroBatchSampler::next(std::size_t batch_size) {
  TRIREME_CHECK(epoch_ >= 0, "MicroBatchSampler::next() was called before reset()");
  if (numbers_.empty()) {
    return torch::nullopt;  // more ranks than micro-batches
  }
  const std::size_t step = given_ / numbers_.size();
  if ((step + 1) * per_step_ * batch_size > order_.size()) {
    return torch::nullopt;
  }
  const std::size_t end = (step * per_step_ + numbers_[given_ % numbers_.size()] + 1) * batch_size;
  ++given_;
  const auto first = order_.begin() + static_cast<std::ptrdiff_t>(end - batch_size);
  return std::vector<std::size_t>(first, first + static_cast<std::ptrdiff_t>(batch_size));
}

void MicroBatchSampler::save(torch::serialize::OutputArchive& archive) const {
  archive.write("epoch", torch::tensor(epoch_, torch::kInt64), /*is_buffer=*/true);
  archive.write(
      "given", torch::tensor(static_cast<std::int64_t>(given_), torch::kInt64), /*is_buffer=*/true);
}

void MicroBatchSampler::load(torch::serialize::InputArchive& archive) {
  at::Tensor epoch = torch::empty({}, torch::kInt64);
  at::Tensor given = torch::empty({}, torch::kInt64);
  archive.read("epoch", epoch, /*is_buffer=*/true);
  archive.read("given", given, /*is_buffer=*/true);
  epoch_ = epoch.item<std::int64_t>();
  begin_epoch();
  given_ = static_cast<std::size_t>(given.item<std::int64_t>());
}

}  // namespace trireme
