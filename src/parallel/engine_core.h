#pragma once

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "parallel/gradient_hooks.h"
#include "parallel/gradient_reducer.h"
#include "parallel/parameter_memory.h"
#include "parallel/sharded_optimizer.h"
#include "trireme/parallel/engine.h"

namespace trireme::detail {

// The engine: one machine for DDP and the ZeRO stages. What differs between them is in the memory
// of the parameters, in where sums are kept, and in which range the optimizer updates.
class EngineCore {
 public:
  EngineCore(std::shared_ptr<torch::nn::Module> model,
             const Optimizer& optimizer,
             const EngineOptions& options,
             std::shared_ptr<Communicator> ranks);
  EngineCore(const EngineCore&) = delete;
  EngineCore& operator=(const EngineCore&) = delete;

  void backward(const at::Tensor& loss);
  bool step();
  [[noreturn]] void give_up(const std::string& reason);
  void deal(const std::vector<std::int64_t>& micro_batches);
  void join();
  double clip_grad_norm(double max_norm);
  at::Tensor grad(const std::string& name);
  at::Tensor average(const std::string& name);
  std::unique_ptr<GatherScope> gathered(const std::vector<std::string>& names);
  EngineState state();
  std::string progress() const;
  void restore(const std::function<void(const StateView& into)>& fill, const std::string& progress);
  void unwrap();
  MemoryReport memory_report();

  std::int64_t local_micro_batches() const {
    return dealt_[static_cast<std::size_t>(ranks_->rank())];
  }
  std::int64_t micro_batch(std::int64_t k) const;
  std::int64_t micro_batches() const { return micro_batches_; }
  std::int64_t steps() const { return steps_; }
  double learning_rate() const;
  void set_learning_rate(double base);
  bool flush();
  double gradient_norm() const { return norm_; }
  double loss_scale() const { return scaler_ ? scaler_->scale() : 1; }
  std::int64_t skipped_steps() const { return scaler_ ? scaler_->state().skipped : 0; }
  MemoryUse memory() const { return ledger_->use(); }
  Communicator& ranks() const { return *ranks_; }
  const EngineOptions& options() const { return options_; }

 private:
  friend class GatherScope;
  // By parameter: what it was before it moved, where it is not read back; undefined elsewhere.
  using Originals = std::vector<at::Tensor>;
  // Moves the model's parameters; see Note [models that are given back].
  void take_model(Originals& originals);
  void give_back(const Originals& originals);
  // A parameter in memory of its own.
  at::Tensor whole(std::size_t parameter);
  void check_options() const;
  void check_shard_group();
  void receive(std::size_t parameter, const at::Tensor& gradient);
  void check_alive() const;
  // Nobody has put other tensors in the place of the parameters, or other memory under them.
  void check_registered() const;
  void check_parameters() const;
  std::size_t parameter_named(const std::string& name) const;
  bool complete_here() const { return round_ >= local_micro_batches(); }
  // Takes part in the rounds in which this rank has no micro-batch, and waits for the sums.
  void complete(bool joined);
  void require_complete(const char* what) const;
  bool finish_step();
  void forget_step();
  [[noreturn]] void refuse_gradients();
  [[noreturn]] void refuse_overflow();
  void tell_of_given_up();
  [[noreturn]] void refuse_given_up();
  bool one_communication() const {
    return options_.sum_order == SumOrder::kLocalFirst && ranks_->size() > 1;
  }
  Rate rate() const { return {base_rate_, options_.schedule.factor(steps_)}; }
  std::int64_t rounds_of(const std::vector<std::int64_t>& dealt) const;
  GradientTransform transform() const;
  void broadcast_buffers(int root);
  void check_no_scope(const char* what) const;
  void check_between_steps(const char* what) const;
  // The rest of a refusal that begins with a function's name. It names what ends a step whose data
  // has ended before.
  std::string in_the_middle() const;
  // `saved`: each element once over all ranks; otherwise all that this rank holds.
  EngineState view(bool saved);
  void finish_restore(const EngineState& state, const std::string& progress);
  // The ranks of `compared` tell each other their bounds, with what they tell each other anyway.
  double clip_to(double max_norm, Communicator& compared);
  at::Tensor gather_gradient(std::size_t parameter);

  // What active ranks do at the end of a step, told to those that have joined and follow.
  enum class Act { kClip = 0, kGradient = 1, kFinish = 2 };
  void announce(Act act, double value);

  std::shared_ptr<const void> alive_ = std::make_shared<int>(0);  // others hold it weakly
  std::shared_ptr<torch::nn::Module> model_;
  EngineOptions options_;
  std::shared_ptr<Communicator> ranks_;
  Communicator* owners_ = nullptr;  // those among whom the stage divides: ranks_, or a machine's
  std::shared_ptr<MemoryLedger> ledger_ = MemoryLedger::create();
  MemoryLedger::Charge buffers_charge_;
  std::int64_t micro_batches_ = 0;   // of a step, over all ranks
  std::vector<std::int64_t> dealt_;  // of them, to each rank
  std::int64_t rounds_ = 0;          // in which all ranks communicate, in a step
  double base_rate_ = 0;
  std::unique_ptr<LossScaler> scaler_;

  std::vector<Parameter> parameters_;
  // Parameters of the model, tied ones under each name; parameters_ keeps them alive.
  std::vector<const at::TensorImpl*> registered_;
  std::vector<Unit> units_;
  std::vector<Place> places_;
  std::vector<const c10::StorageImpl*> storages_;  // by parameter: where its tensor points
  std::unique_ptr<ParameterMemory> memory_;
  std::unique_ptr<ShardedOptimizer> optimizer_;
  std::unique_ptr<GradientReducer> gradients_;

  std::unique_ptr<GradientHooks> hooks_;

  // This step.
  std::int64_t round_ = 0;      // backwards so far
  bool backward_done_ = false;  // and no step() since
  bool in_backward_ = false;
  bool completed_ = false;
  double clip_factor_ = 1;
  bool clipped_ = false;
  bool norm_finite_ = true;
  std::string given_up_;  // why, on the rank that did
  Agreement agreement_;

  std::int64_t steps_ = 0;
  double norm_ = std::numeric_limits<double>::quiet_NaN();
  int open_scopes_ = 0;
  bool failed_ = false;         // in backward
  bool update_failed_ = false;  // in step(), when parameters were being changed
  bool half_loaded_ = false;
  bool unwrapped_ = false;
};

// Parameters that are whole and ordinary for a while.
class GatherScope {
 public:
  GatherScope(EngineCore& core, const std::vector<std::size_t>& parameters);
  GatherScope(const GatherScope&) = delete;
  GatherScope& operator=(const GatherScope&) = delete;
  ~GatherScope() = default;
  void close();
  bool open() const { return open_; }

 private:
  EngineCore& core_;
  std::weak_ptr<const void> alive_;
  std::vector<std::size_t> parameters_;
  MemoryLedger::Charge charge_;
  bool open_ = true;
};

}  // namespace trireme::detail
