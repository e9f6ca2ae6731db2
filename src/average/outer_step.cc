#include "average/outer_step.h"

#include <algorithm>
#include <map>

#include "average/elements.h"

namespace trireme::detail {

OuterStep::OuterStep(const DiLoCo::Outer& options,
                     const Exchange& exchange,
                     Held held,
                     FlatState::Choice weights)
    : options_(options), exchange_(exchange), held_(held), chosen_(std::move(weights)) {}

void OuterStep::begin(const StateView& state) {
  tensors_.clear();
  parts_.clear();
  std::map<std::size_t, std::size_t> places;  // of a tensor of the state among tensors_
  for (std::size_t i = 0; i < state.tensors.size(); ++i) {
    if (chosen_(state.tensors[i])) {
      places[i] = tensors_.size();
      tensors_.push_back(state.tensors[i]);
    }
  }
  std::int64_t numel = 0;
  for (const Dtype dtype : kAveragedDtypes) {
    const FlatState run(state, dtype, chosen_);
    for (const Range& share : exchange_.shares(run, held_)) {
      for (const StateSlice& slice : run.slices(share)) {
        parts_.push_back({places.at(slice.tensor), slice.range, nullptr});
        numel += slice.range.size();
      }
    }
  }
  weights_.assign(size_of(numel), 0);
  momentum_.assign(size_of(numel), 0);
  take_weights(state);
}

void OuterStep::take_weights(const StateView& state) {
  std::ranges::fill(weights_, 0);
  std::span<double> left = weights_;
  for (const Dtype dtype : kAveragedDtypes) {
    const FlatState run(state, dtype, chosen_);
    for (const Range& share : exchange_.shares(run, held_)) {
      for (const StateSlice& slice : run.slices(share)) {
        add_elements(dtype, slice.data, left.first(size_of(slice.range.size())));
        left = left.subspan(size_of(slice.range.size()));
      }
    }
  }
}

void OuterStep::apply(std::span<double> means) {
  for (double& value : means) {
    const double gradient = weights_[at_] - value;
    double& momentum = momentum_[at_];
    momentum = options_.momentum * momentum + gradient;
    const double direction = options_.nesterov ? gradient + options_.momentum * momentum : momentum;
    // weight - lr * direction, written so that it is the mean itself with lr 1 and momentum 0, also
    // where that is -0.
    const double change = gradient - options_.lr * direction;
    value += change == 0 ? -0.0 : change;
    ++at_;
  }
}

void OuterStep::describe(bool weights, StateView& view) {
  const auto list = [&](const char* kind, std::vector<double>& values) {
    const std::size_t first = view.tensors.size();
    for (StateTensor tensor : tensors_) {
      tensor.kind = kind;
      tensor.dtype = Dtype::kFloat64;
      view.tensors.push_back(std::move(tensor));
    }
    double* data = values.data();
    for (const StateSlice& part : parts_) {
      view.slices.push_back({first + part.tensor, part.range, reinterpret_cast<std::byte*>(data)});
      data += part.range.size();
    }
  };
  list("outer.momentum", momentum_);
  if (weights) {
    list("outer.weight", weights_);
  }
}

}  // namespace trireme::detail
