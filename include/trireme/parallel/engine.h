#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "trireme/comm/world.h"
#include "trireme/core/memory_ledger.h"
#include "trireme/optim/optimizer.h"
#include "trireme/parallel/options.h"
#include "trireme/parallel/resumable.h"

namespace trireme {

namespace detail {
struct EngineParts;
class GatherScope;
}  // namespace detail

// What each rank holds, by category; see EngineBase::memory_report.
struct MemoryReport {
  std::vector<MemoryUse> ranks;
  std::int64_t predicted_bytes = 0;  // of one rank: the ZeRO formula for this stage and world
  std::int64_t ddp_bytes = 0;        // of one rank, if it held everything

  std::string to_string() const;  // a table
};

// What compression has done on this rank; see EngineBase::compression.
struct CompressionUse {
  std::int64_t sent_bytes = 0;   // of gradients and their sums, to other ranks
  std::int64_t exact_bytes = 0;  // what they would have been without
  double seconds = 0;            // spent on encoding and decoding
  // Parameters that travel exactly all the same (Compressor::Format::rank).
  std::vector<std::string> exact_parameters{};
  // The sum of a step's gradients beside the exact one, of all ranks
  // (EngineOptions::compress_check).
  struct Check {
    std::int64_t step = 0;  // from 1; 0: none yet
    double relative_error = 0;
    double cosine = 0;
    // What a small step along the compressed gradient takes off the loss, for what the same step
    // along the exact one takes off (SGD, to first order).
    double descent = 0;
  };
  Check check{};  // the last one
  // Rounded parameters (EngineOptions::round_weights) that came from other ranks, at stage 3 on
  // several machines from other machines.
  struct Weights {
    std::int64_t received_bytes = 0;
    std::int64_t exact_bytes = 0;  // what they would have been without
  };
  Weights weights{};
};

// What parameters with sparse gradients have made this rank send; see EngineBase::sparse.
struct SparseUse {
  std::int64_t gradient_bytes = 0;  // of rows and of which they are: gradients, and with DDP sums
  std::int64_t weight_bytes = 0;    // of rows that an update has changed (stages 1 and 2)
  std::int64_t dense_bytes = 0;     // what both would have been of whole parameters
};

// What EngineOptions::offload has done on this rank; see EngineBase::offload.
struct OffloadUse {
  std::int64_t fetched_bytes = 0;  // read from the disk, or copied from the GPU
  std::int64_t sent_bytes = 0;     // written, or copied to it
  double wait_seconds = 0;         // that updates have waited for either
  // Of a disk: the file system reads and writes past the page cache.
  bool past_cache = false;
  // It is none, but memory after all: a tmpfs.
  bool in_memory = false;
};

// How a backward pass is run; see EngineBase::backward.
struct BackwardOptions {
  // Another backward() of the same micro-batch follows, for another of its losses. Gradients are
  // added up on this rank as LibTorch adds them up in .grad, and the others get their sum with the
  // last one. Ranks may differ in it.
  bool more = false;
  bool retain_graph = false;  // for another pass through a part of the same graph
  at::Tensor gradient{};      // of `loss`, where that is not a single number; with its sizes
};

// Parameters whole and writable while it lives. Made by EngineBase::gathered.
class [[nodiscard]] Gathered {
 public:
  explicit Gathered(std::unique_ptr<detail::GatherScope> scope);
  Gathered(Gathered&&) noexcept;
  Gathered& operator=(Gathered&&) = delete;
  ~Gathered();  // see close()

  // Collective: what rank 0 has written reaches all ranks, and the parameters go back to where they
  // live. The destructor does it too, but cannot report a failed peer.
  void close();

 private:
  std::unique_ptr<detail::GatherScope> scope_;
};

class EngineBase;

// EngineBase::give_up of several engines that share a backward, also before they have shared one:
// for a rank whose first forward failed. In the order in which backward() names them.
[[noreturn]] void give_up(const std::string& reason, const std::vector<EngineBase*>& engines);

// Everything of Engine that does not depend on the model's type. All calls but the plain getters
// are collective: every rank makes them, in the same order.
class EngineBase : public Resumable {
 public:
  // Takes the model: its parameters move into memory of the engine, with rank 0's values. If it
  // throws (memory that is not there, models or options that differ), it does so on every rank, and
  // the model is given back: in memory of its own, with its values, types and gradients. Where
  // models began with different values, those of another rank than 0 may be rank 0's by then.
  // After a CommError in the middle, which ends the communicator, this holds on one machine.
  EngineBase(std::shared_ptr<torch::nn::Module> model,
             const Optimizer& optimizer,
             const EngineOptions& options,
             std::shared_ptr<Communicator> ranks);
  EngineBase(EngineBase&&) noexcept;
  EngineBase& operator=(EngineBase&&) = delete;
  // Also in the middle of a step, whose gradients are dropped. Collective at stage 3 on several
  // machines, where ranks read each other's parts.
  ~EngineBase() override;

  // Computes the gradients of one micro-batch and sums them across the ranks as it runs. Pass the
  // loss itself, not divided by anything: the engine divides by the number of micro-batches.
  void backward(const at::Tensor& loss, const BackwardOptions& how = {});

  // Ends a micro-batch. When it was the step's last one, updates the parameters and returns true.
  // (With float16, an overflow on any rank skips the update; skipped_steps() counts them. If no
  // rank had a micro-batch, because those that would have had one joined, it changes nothing and
  // returns false.) Throws GradientError on every rank, changing nothing, if a gradient is not
  // finite. After an error in the update itself, parameters are half updated: the engine can only
  // be unwrapped.
  bool step();

  // Ends a step before all of its micro-batches are done, for example because an epoch's data is
  // not a multiple of them: updates with those that the ranks have (EngineOptions::divisor) and
  // returns true; false if there are none. After step(), on every rank.
  bool flush();

  // Ends a step before all of its micro-batches are done, or after, without an update: its
  // gradients are dropped and no parameter has changed. On every rank.
  void drop();

  // For a rank whose forward or backward failed (out of memory) and that wants to try again: tells
  // the others, drops the step's gradients and throws StepGivenUp; they throw it at the step's end,
  // or where they ask for its sums before (clip_grad_norm, grad). One that has joined joins again.
  // Of engines that share a backward all are given up, on all ranks, by one throw.
  [[noreturn]] void give_up(const std::string& reason);

  // How many of a step's micro-batches each rank computes, from the next step on; between steps.
  // So slower ranks can be given fewer, or all of them more and smaller ones. The sums stay one
  // chain over the micro-batches, so who computes them changes no bit. Same numbers on every rank.
  void deal(const std::vector<std::int64_t>& micro_batches);

  // For a rank that has no more data while others have: takes part in their steps, with nothing of
  // its own, until every rank has called it.
  void join();

  // After the last backward of a step, before step(): bounds the norm of the averaged gradient and
  // returns what it was. Returns 0 and does nothing before the step's other micro-batches. The same
  // bound on every rank; if it is not, all throw ConfigError and the step's gradients are
  // dropped. With check_gradients = false, a norm that is not finite does what it does in
  // torch.nn.utils.clip_grad_norm_: an infinite one makes the finite gradients 0.
  double clip_grad_norm(double max_norm);

  // The averaged gradient of a parameter, whole, at any stage; between the last backward of a step
  // and step(). Undefined if no rank had one.
  at::Tensor grad(const std::string& parameter);
  // Edits it: the update then takes this instead, of which rank 0's values count (where that has
  // joined, those of the first rank that has not; others may give an undefined tensor). Before
  // clip_grad_norm(). Not for sparse gradients.
  void set_grad(const std::string& parameter, const at::Tensor& gradient);

  // The moving average of a parameter, whole (EngineOptions::ema_decay).
  at::Tensor average(const std::string& parameter);

  // Parameters, whole and writable, for as long as the result lives; all of them if no name is
  // given. Elsewhere parameters can be read, and a write is refused by name.
  Gathered gathered(const std::vector<std::string>& parameters = {});

  // See Resumable. The state: weights at full precision, optimizer states, moving averages, buffers
  // and the random generators (of LibTorch's default one on each rank). state() and progress() are
  // not collective.
  EngineState state() override;
  std::string progress() const override;
  void restore(const std::function<void(const StateView& into)>& fill,
               const std::string& progress = {}) override;

  // Compares the ranks' copies of weights (below stage 3, where each has one) and, where they are
  // broadcast, of buffers, and throws ConfigError on all of them, with the name of the first that
  // differs. Between steps; reads all of them once.
  void check_replicas();

  // Says that this rank gets on, in the middle of something long that uses no parameters and no
  // collective: a rank that does not for a while (trireme run --stall) is taken for stuck.
  void alive() const;

  // Gives the model back: whole parameters, in the engine's precision (and rounded, as the model
  // computed with them), in memory of its own. The engine is finished.
  void unwrap();

  // Micro-batches that this rank computes in each step, and the number in the step (from 0) of the
  // k-th of them: rank + k * size, where deal() has not said otherwise.
  std::int64_t local_micro_batches() const;
  std::int64_t micro_batch(std::int64_t k) const;
  std::int64_t micro_batches() const;
  std::int64_t steps() const override;  // updates so far
  double learning_rate() const;
  // The schedule's factor applies to it. The same on every rank, 0 or more. Not between the last
  // backward of a step and step().
  void set_learning_rate(double base);
  // Of the averaged gradient, before clipping, in the last step that was clipped; NaN before it.
  double gradient_norm() const;
  double loss_scale() const;
  std::int64_t skipped_steps() const;  // because of an overflow in float16

  CompressionUse compression() const;  // of this rank, so far
  SparseUse sparse() const;            // of this rank, so far
  OffloadUse offload() const;          // of this rank, so far
  // The part of the weights of EngineOptions::prune that is pruned by now; 0 without. Collective.
  double pruned();

  MemoryUse memory() const;      // of this rank
  MemoryReport memory_report();  // of all ranks; collective
  Communicator& ranks() const override;
  const EngineOptions& options() const;
  // Parameters that were frozen when it was built, by name: it has no gradients and states for
  // them.
  std::vector<std::string> frozen() const;

 protected:
  // Throws ConfigError if this engine was moved from.
  detail::EngineParts& parts() const;

 private:
  friend void backward(const at::Tensor& loss,
                       const std::vector<EngineBase*>& engines,
                       const BackwardOptions& how);
  friend void give_up(const std::string& reason, const std::vector<EngineBase*>& engines);

  std::unique_ptr<detail::EngineParts> parts_;
};

// One loss for several engines (actor and critic, encoder and decoder): one pass through the graph,
// of which each gets the gradients of its own parameters. Otherwise as EngineBase::backward, and
// each engine has a step() of its own. Their sums are formed at the same time, so each needs a
// communicator of its own, world->split(0, world->rank()), all ranks make as many passes and name
// the engines in the same order, and sparse gradients, gradient hooks, join() and a loss scale are
// not for them. Where one ends a step early (flush, drop), the others follow with the same.
void backward(const at::Tensor& loss,
              const std::vector<EngineBase*>& engines,
              const BackwardOptions& how = {});

// Trains any module on all ranks: DistributedDataParallel and ZeRO stages 1 to 3, chosen by
// EngineOptions::zero, with the same result.
//
//   trireme::Engine engine(model, trireme::AdamW({.lr = 3e-4}), {.zero = 3}, world);
//   auto loss = loss_of(engine.forward(batch));
//   engine.backward(loss);
//   engine.step();
//
// Rank 0's parameters and buffers become everyone's. From then on the engine owns the model's
// parameters: they may be read anywhere and written inside gathered().
template <class Model>
class Engine : public EngineBase {
 public:
  Engine(std::shared_ptr<Model> model,
         const Optimizer& optimizer,
         const EngineOptions& options,
         std::shared_ptr<Communicator> ranks)
      : EngineBase(model, optimizer, options, std::move(ranks)), model_(std::move(model)) {}

  template <class Holder>
  requires requires(const Holder& holder) { holder.ptr(); }
  Engine(const Holder& model,
         const Optimizer& optimizer,
         const EngineOptions& options,
         std::shared_ptr<Communicator> ranks)
      : Engine(model.ptr(), optimizer, options, std::move(ranks)) {}

  template <class... Arguments>
  auto forward(Arguments&&... arguments) {
    return model().forward(std::forward<Arguments>(arguments)...);
  }

  Model& model() const {
    parts();
    return *model_;
  }

 private:
  std::shared_ptr<Model> model_;
};

template <class Holder>
requires requires(const Holder& holder) {
  holder.ptr();
}
Engine(const Holder&, const Optimizer&, const EngineOptions&, std::shared_ptr<Communicator>)
    ->Engine<typename Holder::ContainedType>;

}  // namespace trireme
