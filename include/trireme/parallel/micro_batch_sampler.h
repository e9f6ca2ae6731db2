#pragma once

#include <cstdint>
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
//
// The loader's batch size is that of a micro-batch. Samples at the end of an epoch that do not make
// a whole step are left out: in another order, in the next epoch, those are others. What
// Engine::deal says counts from the next epoch on.
class MicroBatchSampler final : public torch::data::samplers::Sampler<> {
 public:
  struct Options {
    std::uint64_t seed = 0;  // the same on every rank
    bool shuffle = true;
  };

  MicroBatchSampler(std::size_t samples, const EngineBase& engine, Options options);
  MicroBatchSampler(std::size_t samples, const EngineBase& engine)
      : MicroBatchSampler(samples, engine, Options{}) {}

  // The next epoch. A loader calls it when its iteration begins, so that the first one is epoch 0.
  void reset(torch::optional<std::size_t> new_size = torch::nullopt) override;
  torch::optional<std::vector<std::size_t>> next(std::size_t batch_size) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  std::int64_t epoch() const { return epoch_; }
  // The epoch that the next reset() begins, where a training is resumed.
  void set_epoch(std::int64_t next) { epoch_ = next - 1; }

 private:
  void begin_epoch();

  std::size_t samples_;
  const EngineBase* engine_;
  Options options_;
  std::int64_t epoch_ = -1;
  std::size_t given_ = 0;  // micro-batches of this rank, in this epoch
  std::vector<std::size_t> order_;
  std::vector<std::size_t> numbers_;  // of this rank's micro-batches in a step
  std::size_t per_step_ = 0;
};

}  // namespace trireme
