#include "trireme/parallel/data_parallel.h"

#include <c10/core/CPUAllocator.h>

#include "parallel/engine/elastic_check.h"
#include "parallel/gradient/backward_mark.h"
#include "parallel/gradient/gradient_hooks.h"
#include "parallel/gradient/gradient_rounds.h"
#include "parallel/memory/runs.h"
#include "parallel/model/broadcast.h"
#include "parallel/model/half_autocast.h"
#include "parallel/model/operator_watch.h"
#include "trireme/comm/tell.h"
#include "trireme/core/error.h"
#include "trireme/tensor/span.h"

namespace trireme {
namespace detail {
namespace {

EngineOptions engine_options(const DataParallelOptions& options) {
  EngineOptions result;
  result.bucket_bytes = options.bucket_bytes;
  result.gradient_hook = options.gradient_hook;
  // What was added up under no_sync() is sent once.
  result.sum_order = SumOrder::kLocalFirst;
  return result;
}

}  // namespace

class DataParallelCore {
 public:
  DataParallelCore(std::shared_ptr<torch::nn::Module> model,
                   const DataParallelOptions& options,
                   std::shared_ptr<Communicator> ranks)
      : model_(std::move(model)),
        ranks_(std::move(ranks)),
        broadcast_buffers_(options.broadcast_buffers),
        options_(engine_options(options)) {
    TRIREME_CHECK(model_ && ranks_, "DataParallel: the model or the world is a null pointer");
    on_all_ranks(*ranks_, [&] {
      check_elastic("DataParallel");
      plan_.parameters = list_parameters(*model_);
      for (const Parameter& parameter : plan_.parameters) {
        TRIREME_CHECK(!parameter.bound || ranks_->size() == 1,
                      "parameter {} is the weight of an Embedding with max_norm, which scales its "
                      "rows in forward(), on each rank others, so that the ranks' weights would "
                      "differ: use an Engine, which scales them on all, or leave max_norm out",
                      {parameter.name});
      }
    });
    check_same_model(*model_, plan_.parameters, *ranks_);
    plan_.complete(*model_, options_, *ranks_, *ranks_);
    gradients_ = std::make_unique<GradientRounds>(
        PartContext{*ranks_, *ranks_, plan_, options_, *ledger_}, 1);
    for (const Parameter& parameter : plan_.parameters) {
      if (watched_of(parameter.tensor) != nullptr) {
        parameter.tensor.set_data(parameter.tensor.detach().clone());  // divided: make it whole
      }
      broadcast_tensor(parameter.tensor.detach(), *ranks_);
      parameter.tensor.mutable_grad().reset();
    }
    broadcast_buffers();
    hooks_ = std::make_unique<GradientHooks>(
        plan_.parameters, [this](std::size_t parameter, const at::Tensor& gradient) {
          if (state_ != State::kBackward && anyone_in_backward()) {
            return;
          }
          TRIREME_CHECK(state_ == State::kBackward,
                        "parameter {} got a gradient outside of DataParallel::backward(): call it "
                        "instead of loss.backward()",
                        {plan_.parameters[parameter].name});
          gradients_->add(parameter, gradient);
        });
  }

  void backward(const at::Tensor& loss) {
    TRIREME_CHECK(loss.defined() && loss.numel() == 1 && loss.requires_grad(),
                  "backward() needs a loss of one element that depends on the parameters");
    for (const Parameter& parameter : plan_.parameters) {
      TRIREME_CHECK(parameter.tensor.requires_grad() == parameter.trainable,
                    "parameter {}{} after DataParallel was built, which sums the gradients of "
                    "those that were trainable then: build a new one",
                    {parameter.name, parameter.trainable ? " was frozen" : " was unfrozen"});
      TRIREME_CHECK(!parameter.tensor.grad().defined(),
                    "parameter {} still has the gradient of the last backward: call "
                    "optimizer.zero_grad() before each backward, or no_sync() to add several up",
                    {parameter.name});
    }
    TRIREME_CHECK(state_ == State::kReady,
                  "a backward pass failed and left its sums half done: build a new one");
    leave_kept_gradients();
    gradients_->begin_round(sync, hooks_->reachable_from(loss));
    run_backward(loss);
    gradients_->end_round({.took_part = true});
    if (sync) {
      finish();
    }
    state_ = State::kReady;
  }

  bool sync = true;

 private:
  enum class State {
    kReady,
    kBackward,
    kHalfDone,  // from backward until everything is summed: for whoever comes then, it has failed
  };

  void run_backward(const at::Tensor& loss) {
    const InBackward mark;
    state_ = State::kBackward;
    try {
      loss.backward();
    } catch (...) {
      state_ = State::kHalfDone;
      throw;
    }
    state_ = State::kHalfDone;
  }

  void broadcast_buffers() {
    for (const at::Tensor& buffer : model_->buffers()) {
      broadcast_tensor(buffer, *ranks_);
    }
  }

  // The memory that gradients were handed out in is written to again. Who has kept one, for a
  // second loss to be combined with the first, keeps its values, in memory of its own.
  void leave_kept_gradients() {
    for (const auto& gradient : handed_out_) {
      if (const auto storage = gradient.lock()) {
        c10::DataPtr own = c10::GetCPUAllocator()->allocate(storage->nbytes());
        const auto bytes = static_cast<std::int64_t>(storage->nbytes());
        device::host().copy({own.get(), bytes, Dtype::kUint8},
                            {storage->data(), bytes, Dtype::kUint8});
        (void)storage->set_data_ptr(std::move(own));
      }
    }
    handed_out_.clear();
  }

  void finish() {
    const Agreement& agreement = gradients_->finish();
    gradients_->gather_whole();
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < plan_.parameters.size(); ++i) {
      const Parameter& parameter = plan_.parameters[i];
      if (!parameter.trainable || !agreement.used[i]) {
        continue;
      }
      const Unit& unit = plan_.unit_of(i);
      const at::ScalarType type = scalar_type_of(unit.sum_dtype());
      at::Tensor sum;
      if (unit.sparse) {
        sum = at::empty_strided(parameter.sizes, parameter.strides, type);
        gradients_->sums().rows(plan_.places[i].unit).copy(plan_.range_of(i), run_of(sum));
      } else {
        const Span run = gradients_->sums().at(plan_.places[i].unit, plan_.range_of(i));
        sum = view_of(parameter, run.bytes(), type, run.owner());
      }
      sum.div_(ranks_->size());
      if (unit.narrow()) {
        sum = sum.to(scalar_type_of(unit.dtype));
      } else if (!unit.sparse) {
        handed_out_.push_back(sum.storage().getWeakStorageImpl());
      }
      parameter.tensor.mutable_grad() = sum;
    }
    gradients_->end_step(StepOutcome::kUpdated);
    forget_casts();  // the user's optimizer comes next
    if (broadcast_buffers_) {
      broadcast_buffers();
    }
  }

  std::shared_ptr<torch::nn::Module> model_;
  std::shared_ptr<Communicator> ranks_;
  bool broadcast_buffers_;
  EngineOptions options_;
  std::shared_ptr<MemoryLedger> ledger_ = MemoryLedger::create();
  ModelPlan plan_;
  std::unique_ptr<GradientRounds> gradients_;
  std::unique_ptr<GradientHooks> hooks_;
  // The memory behind the gradients of the last round, while somebody has them.
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> handed_out_;
  State state_ = State::kReady;
};

}  // namespace detail

NoSync::NoSync(detail::DataParallelCore& core) : core_(core), before_(core.sync) {
  core_.sync = false;
}
NoSync::~NoSync() {
  core_.sync = before_;
}

DataParallelBase::DataParallelBase(std::shared_ptr<torch::nn::Module> model,
                                   const DataParallelOptions& options,
                                   std::shared_ptr<Communicator> ranks)
    : core_(std::make_unique<detail::DataParallelCore>(
          std::move(model), options, std::move(ranks))) {}
DataParallelBase::DataParallelBase(DataParallelBase&&) noexcept = default;
DataParallelBase::~DataParallelBase() = default;

void DataParallelBase::backward(const at::Tensor& loss) {
  core_->backward(loss);
}
NoSync DataParallelBase::no_sync() {
  return NoSync(*core_);
}

}  // namespace trireme
