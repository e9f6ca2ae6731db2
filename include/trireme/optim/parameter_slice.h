#pragma once

#include <array>
#include <cstdint>

#include "trireme/core/dtype.h"

namespace trireme {

// How a summed gradient becomes the gradient of the update; applied on the fly, in this order, so
// that no pass over memory is spent on it.
struct GradientTransform {
  double divisor = 1;      // micro-batches in the sum: one true division
  double unscale = 1;      // the loss scale's reciprocal, a power of two, so exact
  double clip_factor = 1;  // from clipping by global norm
  double clip_value = 0;   // elements are held within +- this; 0 for no bound
};

// A run of elements of one parameter with everything its update touches, all of the same length.
// Which run it is does not matter: every update is computed element by element, with the same
// instructions for every element, so that any split of a parameter gives the same bits.
struct ParameterSlice {
  static constexpr int kMostStates = 4;

  Dtype dtype = Dtype::kFloat32;  // of master, gradient and states: float32 or float64
  void* master = nullptr;  // the parameter itself, or the full-precision copy of a 16-bit one
  const void* gradient = nullptr;
  // As many as Optimizer::state_count(), zero at first.
  std::array<void*, kMostStates> states{};
  void* low = nullptr;  // where the 16-bit parameter is, rounded from the master; or null
  Dtype low_dtype = Dtype::kBFloat16;
  std::int64_t numel = 0;
  std::int64_t step = 1;  // how many updates the parameter will have had with this one
};

}  // namespace trireme
