#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trireme/checkpoint/manifest.h"
#include "trireme/comm/world.h"
#include "trireme/parallel/engine.h"

namespace trireme {

// In which order gradients reach the weights.
enum class Order {
  // Those of a step are added up in the order of the ranks, and make one update. The gradients of
  // step c are of the weights after step c - 1 - bound, whoever is fast or slow: run again, it has
  // the same bits.
  kClock,
  // Each rank's make an update of their own, when they arrive. Run again, it has other bits, unless
  // it is a replay.
  kArrival,
};

// How training does without waiting for the slowest rank in every step.
struct Stale {
  static constexpr std::int64_t kNoBound = -1;  // asynchronous: only with Order::kArrival
  // Steps that a rank may be ahead of the slowest one.
  std::int64_t bound = 0;
  Order order = Order::kClock;
  // The last so many ranks own everything and compute no micro-batches; 0: every rank owns a part,
  // and computes.
  int servers = 0;
  // 1: what a rank owns, and what it needs to compute, is also kept in memory that outlives it, by
  // the launcher of its machine (`--restart N`), which outlives the loss of any number of ranks: a
  // lost owner or worker is started again and goes on from there, without a checkpoint (keep()).
  // With Order::kClock, on one machine.
  int replicas = 0;
  // kArrival: a folder that each owner writes what it did to, and one whose record is followed:
  // that of a run with the same ranks, options and optimizer, and the same `subject`: a line that
  // says what else the result depends on. Empty: none.
  std::string record{};
  std::string replay{};
  std::string subject{};
  // Of a rank's own gradients: accumulate, precision, clipping, ... The stage is 0 to 2, which is
  // the same here: owners have masters and states, and every rank has all parameters.
  EngineOptions engine{};
};

// What staleness was like, of all ranks.
struct StaleUse {
  // Gradients, by how many updates were made between the reading of their weights and their own;
  // the last number is of those with as many or more. Of every owner's part.
  static constexpr std::size_t kMost = 64;
  std::vector<std::int64_t> staleness{};
  // Seconds that answers to other ranks have waited for this one, by rank.
  std::vector<double> held_up{};
};

// The record that is followed (Stale::replay).
struct Replayed {
  // That it has of all ranks. A run that was interrupted, or killed, has less than it wanted.
  std::int64_t steps = 0;
  // Some ranks were further than these steps when the run was killed, and what they had done after
  // them was seen by others before: it is left out, so that the last steps may have other bits.
  bool cut = false;
  // After these steps all ranks went on from the newest weights, as a replay must
  // (go_on_from_newest); it is saved there and at its end only.
  std::vector<std::int64_t> beginnings{};
};

// An engine whose ranks do not wait for each other in every step: a parameter server, whose servers
// are the ranks themselves or a few of them. Each owns a part of the weights and of the optimizer's
// states; ranks send their gradients to the owners, and get weights.
//
//   trireme::StaleEngine engine(model, trireme::Sgd({.lr = 0.1}), {.bound = 3}, world);
//   ...
//   engine.backward(loss_of(engine.forward(batch)));
//   engine.step();
//   ...
//   engine.finish();
//
// This is not what one process would compute, except with bound 0 and Order::kClock, which is
// training in step (docs/synchronisation.md).
class StaleEngineBase : public Resumable {
 public:
  // See EngineBase: rank 0's values become everyone's. Collective.
  StaleEngineBase(std::shared_ptr<torch::nn::Module> model,
                  const Optimizer& optimizer,
                  const Stale& stale,
                  std::shared_ptr<Communicator> ranks);
  // With replicas they are the world.
  StaleEngineBase(std::shared_ptr<torch::nn::Module> model,
                  const Optimizer& optimizer,
                  const Stale& stale,
                  std::shared_ptr<World> world);
  // Without finish(), the other ranks hear that this one has left.
  ~StaleEngineBase() override;
  StaleEngineBase(const StaleEngineBase&) = delete;
  StaleEngineBase& operator=(const StaleEngineBase&) = delete;

  bool computes() const;  // this rank is no server
  int workers() const;    // ranks that compute: the first ones
  int replicas() const;   // Stale::replicas
  void backward(const at::Tensor& loss);
  // After the last micro-batch of this rank's step: sends its gradients to the owners, waits as far
  // as the bound says, has the next weights, and returns true. Throws GradientError, on this rank
  // alone, for gradients that are not finite.
  bool step();
  // This rank has no more data, or is a server: waits until no rank has, and has the newest
  // weights. Collective.
  void finish();

  // Calls `body` while every rank has the newest weights, and the first one's buffers: to evaluate
  // or save them. Training goes on with what each rank had. Collective, after as many steps on
  // every rank; so are the following.
  void with_newest(const std::function<void()>& body);
  // From here on all ranks go on from the newest weights: saving changes how training goes on, in
  // the same way as loading does.
  EngineState state() override;
  void go_on_from_newest();               // the same, without a state
  std::string progress() const override;  // after state()
  void restore(const std::function<void(const StateView& into)>& fill,
               const std::string& progress = {}) override;
  // Stale::replicas. What the ranks before a loss had given keep(); the engine has taken their
  // state over when it was built, and steps() says how far they had come. Nothing: there were none.
  const std::optional<Notes>& kept() const;
  // Of this rank, what is not an owner's: buffers, generator, loss scale, `notes`. First before
  // the first step, after whatever is restored: then it is collective; from there on after each
  // step, and waits for nobody. state() and go_on_from_newest() change what all go on from: then,
  // too, the next one is collective, and comes before the next step.
  void keep(const Notes& notes = {});

  StaleUse use() const;
  // Nothing where none is followed.
  const std::optional<Replayed>& replayed() const;
  MemoryReport memory_report() const;

  std::size_t state_bytes() const;      // of this rank's part of the state
  std::int64_t sent_bytes() const;      // of gradients, by this rank, to others
  std::int64_t steps() const override;  // of this rank
  Communicator& ranks() const override;
  // What computes this rank's gradients: for its getters and set_learning_rate(), which all ranks
  // that compute call alike.
  EngineBase& worker() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// The step that an engine with these replicas would go on from: nothing where nothing was kept.
std::optional<std::int64_t> kept_by_servers(const std::shared_ptr<World>& world,
                                            const Stale& stale);

template <class Model>
class StaleEngine : public StaleEngineBase {
 public:
  template <class Ranks>  // World or Communicator
  StaleEngine(std::shared_ptr<Model> model,
              const Optimizer& optimizer,
              const Stale& stale,
              std::shared_ptr<Ranks> ranks)
      : StaleEngineBase(model, optimizer, stale, std::move(ranks)), model_(std::move(model)) {}

  template <class Holder, class Ranks>
  requires requires(const Holder& holder) { holder.ptr(); }
  StaleEngine(const Holder& model,
              const Optimizer& optimizer,
              const Stale& stale,
              std::shared_ptr<Ranks> ranks)
      : StaleEngine(model.ptr(), optimizer, stale, std::move(ranks)) {}

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
StaleEngine(const Holder&, const Optimizer&, const Stale&, std::shared_ptr<Communicator>)
    ->StaleEngine<typename Holder::ContainedType>;

}  // namespace trireme
