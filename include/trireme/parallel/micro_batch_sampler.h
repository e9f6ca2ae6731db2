#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <torch/data/samplers/base.h>

#include "trireme/parallel/engine.h"

namespace trireme {

// For torch::data::make_data_loader: the samples of this rank's micro-batches, such that the sum
// over all ranks, and so every bit of the result, is the same for any number of them (which that of
// torch::data's DistributedRandomSampler is not).
//
//   trireme::MicroBatchSampler sampler(*dataset.size(), engine, {.seed = 1});
//   auto loader = torch::data::make_data_loader(dataset, sampler, micro_batch_size);
//   for (auto& batch : *loader) {  // an epoch
//     engine.backward(loss_of(engine.forward(batch.data), batch.target));
//     engine.step();
//   }
//   engine.join();  // needed where there may be more ranks than micro-batches
//
// The loader's batch size is that of a micro-batch. Samples at the end of an epoch that do not make
// a whole step are left out: in another order, in the next epoch, those are others. After
// Engine::deal begin a new epoch. Copies, such as the loader's, share their place.
class MicroBatchSampler final : public torch::data::samplers::Sampler<> {
 public:
  struct Options {
    std::uint64_t seed = 0;  // the same on every rank
    bool shuffle = true;
  };

  MicroBatchSampler(std::size_t samples, const EngineBase& engine, Options options);
  MicroBatchSampler(std::size_t samples, const EngineBase& engine)
      : MicroBatchSampler(samples, engine, Options{}) {}

  // The next epoch, or after load() the rest of the one at hand. A loader calls it when its
  // iteration begins, so that the first one is epoch 0.
  void reset(torch::optional<std::size_t> new_size = torch::nullopt) override;
  torch::optional<std::vector<std::size_t>> next(std::size_t batch_size) override;
  // The epoch and the steps of it that were given out, those that wait in a loader included; for
  // any number of ranks.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  std::int64_t epoch() const { return place_->epoch; }

 private:
  struct Place {
    std::int64_t epoch = -1;
    std::size_t steps = 0;  // whole ones of this epoch, on this rank
    std::size_t given = 0;  // micro-batches after them
    bool loaded = false;    // and not begun yet
    std::vector<std::size_t> order;
    std::vector<std::size_t> numbers;  // of this rank's micro-batches in a step
  };

  std::vector<std::size_t> own_numbers() const;

  std::size_t samples_;
  const EngineBase* engine_;
  Options options_;
  std::shared_ptr<Place> place_ = std::make_shared<Place>();
};

}  // namespace trireme
