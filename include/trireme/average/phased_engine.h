#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "trireme/average/averaging.h"
#include "trireme/parallel/engine.h"

namespace trireme {

// The gradients of all ranks are summed in every step, as by an Engine of the world.
struct Exact {};

// How replicas stay together.
using SyncMode = std::variant<Exact, Local, DiLoCo, Gossip>;
// "exact", "local:8", "diloco:100", "gossip:1".
std::string to_text(const SyncMode& mode);

// A mode from a step on: after so many steps.
struct SyncPhase {
  std::int64_t from = 0;
  SyncMode mode{};
};

struct Phased {
  // In ascending order, from step 0 on.
  std::vector<SyncPhase> phases = {{0, Exact{}}};
  ReplicaOptions replicas{};  // in the phases that are not exact
  bool states = false;        // AveragingOptions::states, in these
  // micro_batches is the number of all ranks, of which each replica has its part.
  EngineOptions engine{};
};

// One training with phases of its own: exact ones, in which all ranks have one engine, and others,
// in which replicas have one each and are averaged now and then.
//
//   trireme::PhasedEngine engine(
//       model, trireme::Sgd({.lr = 0.1}),
//       {.phases = {{0, Exact{}}, {500, Local{.steps = 8}}, {900, Exact{}}}}, world);
//   ...
//   engine.backward(loss_of(engine.forward(batch)));
//   engine.step();
//
// An exact phase has the bits of an Engine of the world. Where one ends, every replica goes on with
// its weights and states. Where one begins, the ranks go on with the mean of the replicas, of their
// states, too: as a single training they have one of each. For that the engine is built anew, for
// which a rank holds the model whole and its part of the state twice for a moment.
class PhasedEngineBase : public Resumable {
 public:
  // As EngineBase: rank 0's values become everyone's. Throws ConfigError for what some phase could
  // not be, and for compressors that keep what they leave out. Collective; so is all below but the
  // plain getters.
  PhasedEngineBase(std::shared_ptr<torch::nn::Module> model,
                   const Optimizer& optimizer,
                   const Phased& options,
                   std::shared_ptr<Communicator> world);
  ~PhasedEngineBase() override;
  PhasedEngineBase(const PhasedEngineBase&) = delete;
  PhasedEngineBase& operator=(const PhasedEngineBase&) = delete;

  void backward(const at::Tensor& loss, const BackwardOptions& how = {});
  // EngineBase::step(). After a step's last micro-batch it also averages where that is due, enters
  // the phase that begins there, and returns true.
  bool step();

  // From the next step on, and until the next of the phases: for a loop that decides by what it
  // measures. Between two steps; the same on all ranks.
  void enter(const SyncMode& mode);
  const SyncMode& mode() const;
  // All that were entered, from step 0 on: as Phased::phases they make another training do the
  // same.
  const std::vector<SyncPhase>& entered() const;

  // The engine of this phase, of all ranks or of this rank's replica: another one in the next.
  EngineBase& engine() const;
  // Nothing in an exact phase.
  Averaging* averaging() const;
  const Replicas& replicas() const;
  // Micro-batches that this rank computes in this phase, and the number in the step of the k-th of
  // them, over all ranks.
  std::int64_t local_micro_batches() const;
  std::int64_t micro_batch(std::int64_t k) const;

  // What step() does after EngineBase::step() has returned true: for a loop that calls that itself.
  // The second one changes engine().
  void end_step();
  void enter_next_phase();

  // Averaging::with_mean; in an exact phase `body` alone.
  void with_mean(const std::function<void()>& body);
  // In an exact phase those of an Engine of the world, which can load them, too; in another those
  // of Averaging. Restored is either, whatever phase this is in: it goes on in that of its step.
  EngineState state() override;
  EngineState state_to_keep();  // Averaging::state_to_keep
  std::string progress() const override;
  void restore(const std::function<void(const StateView& into)>& fill,
               const std::string& progress = {}) override;

  std::int64_t steps() const override;
  Communicator& ranks() const override;  // the world
  // Of all phases since it was made.
  AveragingUse averaging_use() const;
  CompressionUse compression() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

template <class Model>
class PhasedEngine : public PhasedEngineBase {
 public:
  PhasedEngine(std::shared_ptr<Model> model,
               const Optimizer& optimizer,
               const Phased& options,
               std::shared_ptr<Communicator> world)
      : PhasedEngineBase(model, optimizer, options, std::move(world)), model_(std::move(model)) {}

  template <class Holder>
  requires requires(const Holder& holder) { holder.ptr(); }
  PhasedEngine(const Holder& model,
               const Optimizer& optimizer,
               const Phased& options,
               std::shared_ptr<Communicator> world)
      : PhasedEngine(model.ptr(), optimizer, options, std::move(world)) {}

  template <class... Arguments>
  auto forward(Arguments&&... arguments) {
    return model_->forward(std::forward<Arguments>(arguments)...);
  }
  Model& model() const { return *model_; }

 private:
  std::shared_ptr<Model> model_;
};

template <class Holder>
requires requires(const Holder& holder) {
  holder.ptr();
}
PhasedEngine(const Holder&, const Optimizer&, const Phased&, std::shared_ptr<Communicator>)
    ->PhasedEngine<typename Holder::ContainedType>;

}  // namespace trireme
