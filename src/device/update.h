#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "trireme/core/dtype.h"

namespace trireme::device {

// The memory of one pass of an update rule, all of the same length. The rule is a formula for one
// element: (parameter, gradient, states) -> (result, states); update_pass-inl.h says how it is
// written, once for all devices.
struct UpdateArrays {
  static constexpr int kMostStates = 3;

  Dtype dtype = Dtype::kFloat32;  // of parameter, gradient and states: float32 or float64
  Dtype low_dtype = Dtype::kBFloat16;
  std::int64_t numel = 0;
  void* parameter = nullptr;
  const void* gradient = nullptr;
  std::array<void*, kMostStates> states{};
  void* low = nullptr;     // where the result also goes, rounded to `low_dtype`; or nowhere
  void* result = nullptr;  // where the result goes; null: it is the parameter's new value
};

// A file of source for a device that compiles kernels of its own.
struct SourceText {
  const char* name;  // as an include names it
  const char* text;
};

// A rule with the constants of a step, for `Stream::update`.
struct UpdateRule {
  const char* name;                   // of its class template
  std::span<const SourceText> texts;  // where that is written, in the order in which to read them
  int states = 0;
  const void* constants = nullptr;  // a Rule<float> or Rule<double>, by the arrays' dtype;
  std::size_t bytes = 0;            // read before a call returns
  // The host's pass.
  void (*on_host)(const void* constants, const UpdateArrays& arrays) = nullptr;
};

}  // namespace trireme::device
