#pragma once

#include <memory>
#include <utility>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "trireme/comm/world.h"
#include "trireme/parallel/options.h"

namespace trireme {

namespace detail {
class DataParallelCore;
}

struct DataParallelOptions {
  std::size_t bucket_bytes = 1 << 20;
  bool broadcast_buffers = true;  // rank 0's buffers to all, after each backward that communicates
  GradientHook gradient_hook{};
};

// While it lives, backward adds gradients up on each rank and nothing is communicated.
class [[nodiscard]] NoSync {
 public:
  explicit NoSync(detail::DataParallelCore& core);
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;
  ~NoSync();

 private:
  detail::DataParallelCore& core_;
  bool before_;
};

// Everything of DataParallel that does not depend on the model's type.
class DataParallelBase {
 public:
  DataParallelBase(std::shared_ptr<torch::nn::Module> model,
                   const DataParallelOptions& options,
                   std::shared_ptr<Communicator> ranks);
  DataParallelBase(DataParallelBase&&) noexcept;
  DataParallelBase& operator=(DataParallelBase&&) = delete;
  ~DataParallelBase();

  // Computes gradients; afterwards every parameter's .grad is the average over the ranks (the sum
  // divided by their number). A parameter that no rank used keeps an undefined one. Gradients kept
  // from an earlier backward are not touched. Collective.
  void backward(const at::Tensor& loss);
  NoSync no_sync();

 private:
  std::unique_ptr<detail::DataParallelCore> core_;
};

// Data parallelism for people who keep their own torch::optim: the same gradients on every rank,
// and nothing else. (Engine does more: it owns the update, which is faster, and can divide memory.)
//
//   trireme::DataParallel parallel(model, {}, world);
//   torch::optim::Adam optimizer(model->parameters());
//   optimizer.zero_grad();
//   parallel.backward(loss_of(parallel.forward(batch)));
//   optimizer.step();
//
// Rank 0's parameters and buffers become everyone's.
template <class Model>
class DataParallel : public DataParallelBase {
 public:
  DataParallel(std::shared_ptr<Model> model,
               const DataParallelOptions& options,
               std::shared_ptr<Communicator> ranks)
      : DataParallelBase(model, options, std::move(ranks)), model_(std::move(model)) {}

  template <class Holder>
  requires requires(const Holder& holder) { holder.ptr(); }
  DataParallel(const Holder& model,
               const DataParallelOptions& options,
               std::shared_ptr<Communicator> ranks)
      : DataParallel(model.ptr(), options, std::move(ranks)) {}

  template <class... Arguments>
  auto forward(Arguments&&... arguments) {
    return model_->forward(std::forward<Arguments>(arguments)...);
  }

 private:
  std::shared_ptr<Model> model_;
};

template <class Holder>
requires requires(const Holder& holder) {
  holder.ptr();
}
DataParallel(const Holder&, const DataParallelOptions&, std::shared_ptr<Communicator>)
    ->DataParallel<typename Holder::ContainedType>;

}  // namespace trireme
