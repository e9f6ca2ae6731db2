#include "trireme/parallel/data_parallel.h"

#include <cstring>

#include <c10/core/CPUAllocator.h>

#include "parallel/backward_mark.h"
#include "parallel/broadcast.h"
#include "parallel/gradient_hooks.h"
#include "parallel/gradient_reducer.h"
#include "parallel/half_autocast.h"
#include "parallel/operator_watch.h"
#include "parallel/same_on_all_ranks.h"
#include "trireme/core/error.h"
#include "trireme/tensor/span.h"

namespace trireme {
namespace detail {
namespace {

EngineOptions reducer_options(const DataParallelOptions& options) {
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
        options_(reducer_options(options)) {
    TRIREME_CHECK(model_ && ranks_, "DataParallel: the model or the world is a null pointer");
    all_or_none(*ranks_, [&] { parameters_ = list_parameters(*model_); });
    check_same_model(*model_, parameters_, *ranks_);
    units_ = plan_units(*model_, parameters_, options_, ranks_->size());
    places_ = places_of(units_, parameters_.size());
    reducer_ = std::make_unique<GradientReducer>(
        parameters_, units_, places_, options_, 1, *ranks_, *ranks_, *ledger_);
    for (Parameter& parameter : parameters_) {
      if (watched_of(parameter.tensor) != nullptr) {
        parameter.tensor.set_data(parameter.tensor.detach().clone());  // divided: make it whole
      }
      broadcast_tensor(parameter.tensor.detach(), *ranks_);
      parameter.tensor.mutable_grad().reset();
    }
    broadcast_buffers();
    hooks_ = std::make_unique<GradientHooks>(
        parameters_, [this](std::size_t parameter, const at::Tensor& gradient) {
          if (!in_backward_ && anyone_in_backward()) {
            return;
          }
          TRIREME_CHECK(in_backward_,
                        "parameter ",
                        parameters_[parameter].name,
                        " got a gradient outside of DataParallel::backward(): call it instead of "
                        "loss.backward()");
          reducer_->add(parameter, gradient);
        });
  }

  void backward(const at::Tensor& loss) {
    TRIREME_CHECK(loss.defined() && loss.numel() == 1 && loss.requires_grad(),
                  "backward() needs a loss of one element that depends on the parameters");
    for (const Parameter& parameter : parameters_) {
      TRIREME_CHECK(parameter.tensor.requires_grad() == parameter.trainable,
                    "parameter ",
                    parameter.name,
                    parameter.trainable ? " was frozen" : " was unfrozen",
                    " after DataParallel was built, which sums the gradients of those that were "
                    "trainable then: build a new one");
      TRIREME_CHECK(
          !parameter.tensor.grad().defined(),
          "parameter ",
          parameter.name,
          " still has the gradient of the last backward: call optimizer.zero_grad() before "
          "each backward, or no_sync() to add several up");
    }
    TRIREME_CHECK(!failed_, "a backward pass failed and left its sums half done: build a new one");
    leave_kept_gradients();
    reducer_->begin_round(sync, hooks_->reachable_from(loss));
    failed_ = true;  // until the end is reached
    {
      const InBackward mark(in_backward_);
      loss.backward();
    }
    reducer_->end_round({.took_part = true});
    if (sync) {
      finish();
    }
    failed_ = false;
  }

  bool sync = true;

 private:
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
        std::memcpy(own.get(), storage->data(), storage->nbytes());
        (void)storage->set_data_ptr(std::move(own));
      }
    }
    handed_out_.clear();
  }

  void finish() {
    const Agreement agreement = reducer_->finish();
    reducer_->gather_whole();
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const Parameter& parameter = parameters_[i];
      if (!parameter.trainable || !agreement.used[i]) {
        continue;
      }
      const Place& place = places_[i];
      const Unit& unit = units_[place.unit];
      at::Tensor sum = view_of(parameter,
                               reducer_->sums().at(place.unit, unit.layout.offset(place.index)),
                               scalar_type_of(unit.sum_dtype()),
                               reducer_->sums().owner(place.unit));
      sum.div_(ranks_->size());
      if (unit.has_masters()) {
        sum = sum.to(scalar_type_of(unit.dtype));
      } else {
        handed_out_.push_back(sum.storage().getWeakStorageImpl());
      }
      parameter.tensor.mutable_grad() = sum;
    }
    reducer_->reset();
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
  std::vector<Parameter> parameters_;
  std::vector<Unit> units_;
  std::vector<Place> places_;
  std::unique_ptr<GradientReducer> reducer_;
  std::unique_ptr<GradientHooks> hooks_;
  // The memory behind the gradients of the last round, while somebody has them.
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> handed_out_;
  bool in_backward_ = false;
  bool failed_ = false;
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
