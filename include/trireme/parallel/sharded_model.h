#pragma once

#include <memory>
#include <utility>

#include <torch/nn/module.h>

#include "trireme/comm/communicator.h"

namespace trireme {

namespace detail {

// While it lives, large tensors that this thread creates are divided among the ranks as soon as the
// next one is created.
class Construction {
 public:
  explicit Construction(Communicator& ranks);
  Construction(const Construction&) = delete;
  Construction& operator=(const Construction&) = delete;
  ~Construction();

  // The model is built: its parameters stay divided.
  void finish(torch::nn::Module& model);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace detail

// Builds a model of which no rank ever holds more than one large parameter whole, so that it may be
// too large for one rank; give it to an Engine with stage 3. Every rank runs the constructor, with
// the same random seed, and gets the initial values that it would get without this.
//
//   auto model = trireme::build_sharded(*world, [] { return std::make_shared<Net>(); });
//
// Collective. Until an engine takes it, the model can be read; constructors must not take pointers
// to the memory of tensors. Tensors that already existed stay as they are, separate on each rank.
// Parameters that share memory, and kept views of them, are refused, as an engine does.
template <class Factory>
auto build_sharded(Communicator& ranks, Factory&& factory) {
  detail::Construction construction(ranks);
  auto model = std::forward<Factory>(factory)();
  construction.finish(*model);
  return model;
}

}  // namespace trireme
