#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "trireme/core/device.h"
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

// A parameter as its optimizer knows it.
struct ParameterInfo {
  std::string name;  // "blocks.0.linear.weight"; of a tied one the first
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;  // of its elements in memory, which has no holes

  std::int64_t numel() const;
};

inline constexpr int kMostOptimizerStates = 4;

// What a rule knows of a whole parameter while it updates slices of it.
struct WholeParameter {
  ParameterInfo info;
  Dtype dtype = Dtype::kFloat32;  // of masters, gradients and states: float32 or float64
  std::int64_t step = 1;          // how many updates it will have had with this one
  // What the rule's passes have found out, by pass (Optimizer::passes).
  std::vector<std::vector<double>> measured{};
  // Its states that are not divided, by their number among all of its states.
  std::array<void*, kMostOptimizerStates> states{};
};

// A run of elements of one parameter with everything its update touches, all of the same length.
// Which run it is does not matter: every update is computed element by element, with the same
// instructions for every element, so that any split of a parameter gives the same bits.
struct ParameterSlice {
  Dtype dtype = Dtype::kFloat32;  // of master, gradient and states: float32 or float64
  void* master = nullptr;  // the parameter itself, or the full-precision copy of a 16-bit one
  const void* gradient = nullptr;
  // As many as the parameter has (Optimizer::states), zero at first.
  std::array<void*, kMostOptimizerStates> states{};
  void* low = nullptr;  // where the 16-bit parameter is, rounded from the master; or null
  Dtype low_dtype = Dtype::kBFloat16;
  std::int64_t numel = 0;
  std::int64_t step = 1;   // how many updates the parameter will have had with this one
  std::int64_t begin = 0;  // the first element's number in the parameter, in the order of memory
  // Null where the slice is the whole parameter, of which nothing else is known.
  const WholeParameter* whole = nullptr;
  Device device{};  // whose memory all of it is

  // Elements [first, first + count) of it.
  ParameterSlice part(std::int64_t first, std::int64_t count) const;
};

}  // namespace trireme
