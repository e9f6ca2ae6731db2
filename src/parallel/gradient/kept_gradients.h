#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/sparse_coo_tensor.h>

namespace trireme::detail {

// Gradients of the backward passes of a micro-batch before its last one (BackwardOptions::more), by
// parameter: added up here as LibTorch does it in .grad, in the parameter's own type.
class KeptGradients {
 public:
  explicit KeptGradients(std::size_t parameters) : kept_(parameters) {}

  // What comes next is kept, or taken together with what was kept.
  void collect(bool collects) { collects_ = collects; }
  bool collects() const { return collects_; }
  // A gradient has come: what is to be done with it. Undefined: nothing yet.
  at::Tensor take(std::size_t parameter, const at::Tensor& gradient) {
    at::Tensor& before = kept_[parameter];
    if (!collects_ && !before.defined()) {
      return gradient;
    }
    const at::NoGradGuard no_grad;
    // The first one may be somebody's buffer, which they write to before the next pass.
    const at::Tensor sum = before.defined() ? sum_of(before, gradient) : gradient.detach().clone();
    before = collects_ ? sum : at::Tensor();
    return collects_ ? at::Tensor() : sum;
  }
  // Sets those that there is something of.
  void mark(std::vector<bool>& expected) const {
    for (std::size_t p = 0; p < kept_.size(); ++p) {
      if (kept_[p].defined()) {
        expected[p] = true;
      }
    }
  }
  // What the last pass had nothing for; in the order in which gradients usually come.
  template <class Receive>
  void hand_over(const Receive& receive) {
    for (std::size_t p = kept_.size(); p-- > 0;) {
      if (kept_[p].defined()) {
        receive(p, std::exchange(kept_[p], at::Tensor()));
      }
    }
  }
  void forget() {
    std::fill(kept_.begin(), kept_.end(), at::Tensor());
    collects_ = false;
  }

 private:
  static at::Tensor sum_of(const at::Tensor& before, const at::Tensor& gradient) {
    const bool half = before.scalar_type() == at::kHalf;  // of which LibTorch adds no rows
    if (before.is_sparse() && gradient.is_sparse() && half) {
      const at::Tensor one = before.coalesce(), other = gradient.coalesce();
      return at::sparse_coo_tensor(at::cat({one.indices(), other.indices()}, 1),
                                   at::cat({one.values(), other.values()}),
                                   one.sizes())
          .coalesce();
    }
    const auto whole = [&](const at::Tensor& t) {
      return half && t.is_sparse() ? t.to_dense() : t;
    };
    return before.is_sparse() ? at::add(whole(gradient), whole(before))
                              : at::add(before, whole(gradient));
  }

  std::vector<at::Tensor> kept_;
  bool collects_ = false;
};

}  // namespace trireme::detail
