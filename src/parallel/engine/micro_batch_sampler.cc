#include "trireme/parallel/micro_batch_sampler.h"

#include <numeric>
#include <utility>

#include <torch/serialize/archive.h>

#include "trireme/core/error.h"
#include "trireme/core/random.h"

namespace trireme {

MicroBatchSampler::MicroBatchSampler(std::size_t samples, const EngineBase& engine, Options options)
    : samples_(samples), engine_(&engine), options_(options) {}

std::vector<std::size_t> MicroBatchSampler::own_numbers() const {
  std::vector<std::size_t> numbers;
  for (std::int64_t k = 0; k < engine_->local_micro_batches(); ++k) {
    numbers.push_back(static_cast<std::size_t>(engine_->micro_batch(k)));
  }
  return numbers;
}

void MicroBatchSampler::reset(torch::optional<std::size_t> new_size) {
  samples_ = new_size.value_or(samples_);
  Place& place = *place_;
  if (!std::exchange(place.loaded, false)) {
    ++place.epoch;
    place.steps = 0;
  }
  place.given = 0;
  place.numbers = own_numbers();
  place.order.resize(samples_);
  std::iota(place.order.begin(), place.order.end(), std::size_t{0});
  // By a generator of its own (Fisher and Yates): LibTorch's has been drawn from by dropout, on
  // each rank differently often, and an epoch that is begun again could not be put in order.
  if (options_.shuffle) {
    RandomStream random(mix(options_.seed, static_cast<std::uint64_t>(place.epoch)));
    for (std::size_t left = samples_; left > 1; --left) {
      std::swap(place.order[left - 1], place.order[random.below(left)]);
    }
  }
}

torch::optional<std::vector<std::size_t>> MicroBatchSampler::next(std::size_t batch_size) {
  Place& place = *place_;
  TRIREME_CHECK(place.epoch >= 0 && !place.loaded,
                "MicroBatchSampler::next() was called before reset()");
  const auto per_step = static_cast<std::size_t>(engine_->micro_batches());
  TRIREME_CHECK(place.given > 0 || place.numbers == own_numbers(),
                "MicroBatchSampler: Engine::deal has dealt the micro-batches anew in the middle of "
                "epoch {}: call it between epochs",
                {place.epoch});
  if (place.numbers.empty() || (place.steps + 1) * per_step * batch_size > place.order.size()) {
    return torch::nullopt;
  }
  const std::size_t end = (place.steps * per_step + place.numbers[place.given] + 1) * batch_size;
  if (++place.given == place.numbers.size()) {
    place.given = 0;
    ++place.steps;
  }
  const auto first = place.order.begin() + static_cast<std::ptrdiff_t>(end - batch_size);
  return std::vector<std::size_t>(first, first + static_cast<std::ptrdiff_t>(batch_size));
}

void MicroBatchSampler::save(torch::serialize::OutputArchive& archive) const {
  const auto write = [&](const char* name, std::int64_t value) {
    archive.write(name, torch::tensor(value, torch::kInt64), /*is_buffer=*/true);
  };
  write("epoch", place_->epoch);
  write("steps", static_cast<std::int64_t>(place_->steps));
}

void MicroBatchSampler::load(torch::serialize::InputArchive& archive) {
  const auto read = [&](const char* name) {
    at::Tensor value = torch::empty({}, torch::kInt64);
    archive.read(name, value, /*is_buffer=*/true);
    return value.item<std::int64_t>();
  };
  place_->epoch = read("epoch");
  place_->steps = static_cast<std::size_t>(read("steps"));
  place_->loaded = place_->epoch >= 0;
}

}  // namespace trireme
