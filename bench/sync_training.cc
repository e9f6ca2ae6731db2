#include "sync_training.h"

#include "trireme/average/averaging.h"
#include "trireme/core/error.h"
#include "trireme/server/stale_engine.h"

namespace trireme::bench {
namespace {

// The rate that `trireme bench step` has, too.
AdamW adamw() {
  return AdamW({.lr = 3e-4});
}

class ExactTraining final : public SyncTraining {
 public:
  ExactTraining(const models::Gpt& model,
                std::int64_t micro_batches,
                const std::shared_ptr<Communicator>& world)
      : world_(world), engine_(model, adamw(), {.micro_batches = micro_batches}, world) {}

  std::int64_t micro_batches() const override { return engine_.local_micro_batches(); }
  void compute(const at::Tensor& loss) override {
    engine_.backward(loss);
    engine_.step();
  }
  void deal(const std::vector<std::int64_t>& micro_batches) override {
    engine_.deal(micro_batches);
  }
  std::int64_t sent_bytes() const override { return world_->use().network_bytes; }

 private:
  std::shared_ptr<Communicator> world_;
  Engine<models::GptImpl> engine_;
};

Averaging::Mode averaging_mode(const SyncMode& mode) {
  if (mode.name == "local") {
    return Local{.steps = mode.number};
  }
  if (mode.name == "diloco") {
    return DiLoCo{.steps = mode.number};
  }
  return Gossip{.steps = mode.number};
}

class AveragedTraining final : public SyncTraining {
 public:
  AveragedTraining(const SyncMode& mode,
                   const models::Gpt& model,
                   std::int64_t micro_batches,
                   const std::shared_ptr<Communicator>& world)
      : replicas_(world, {.ranks = 1}),
        engine_(
            model, adamw(), {.micro_batches = micro_batches / replicas_.count()}, replicas_.mine()),
        averaging_(engine_, replicas_, averaging_mode(mode)) {}

  std::int64_t micro_batches() const override { return engine_.local_micro_batches(); }
  void compute(const at::Tensor& loss) override {
    engine_.backward(loss);
    if (engine_.step()) {
      averaging_.step();
    }
  }
  std::int64_t sent_bytes() const override { return averaging_.use().sent_bytes; }

 private:
  Replicas replicas_;
  Engine<models::GptImpl> engine_;
  Averaging averaging_;
};

Stale stale_options(const SyncMode& mode, std::int64_t accumulate) {
  Stale stale{.bound = mode.number, .engine = {.accumulate = accumulate}};
  if (mode.name == "async") {
    stale.bound = Stale::kNoBound;
    stale.order = Order::kArrival;
  }
  return stale;
}

class StaleTraining final : public SyncTraining {
 public:
  StaleTraining(const SyncMode& mode,
                const models::Gpt& model,
                std::int64_t micro_batches,
                const std::shared_ptr<Communicator>& world)
      : accumulate_(micro_batches / world->size()),
        engine_(model, adamw(), stale_options(mode, accumulate_), world) {}

  std::int64_t micro_batches() const override { return accumulate_; }
  void compute(const at::Tensor& loss) override {
    engine_.backward(loss);
    engine_.step();
  }
  void finish() override { engine_.finish(); }
  std::int64_t sent_bytes() const override { return engine_.sent_bytes(); }

 private:
  std::int64_t accumulate_;
  StaleEngine<models::GptImpl> engine_;
};

}  // namespace

void SyncTraining::deal(const std::vector<std::int64_t>& /*micro_batches*/) {
  throw ConfigError("only exact training deals micro-batches");
}

std::unique_ptr<SyncTraining> make_training(const SyncMode& mode,
                                            const models::Gpt& model,
                                            std::int64_t micro_batches,
                                            const std::shared_ptr<Communicator>& world) {
  TRIREME_CHECK(micro_batches % world->size() == 0,
                "expected micro-batches that ",
                world->size(),
                " ranks have as many of, found ",
                micro_batches);
  if (mode.averages()) {
    return std::make_unique<AveragedTraining>(mode, model, micro_batches, world);
  }
  if (mode.is_stale()) {
    return std::make_unique<StaleTraining>(mode, model, micro_batches, world);
  }
  return std::make_unique<ExactTraining>(model, micro_batches, world);
}

}  // namespace trireme::bench
