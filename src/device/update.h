#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "trireme/core/dtype.h"
#include "trireme/device/square_sum.h"

// Update rules, as a device sees them: a formula for one element, and arrays to go over.

namespace trireme::device {

// The memory of one pass, all of the same length.
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

  // Elements [first, first + count) of all of them.
  UpdateArrays part(std::int64_t first, std::int64_t count) const;
};

// A formula for one element: (parameter, gradient, states) -> (result, states). It is written once
// (update_pass-inl.h says how), and each device compiles it; the host's is a function, others look
// theirs up by name. `constants` are the rule's own, read before the call returns.
struct UpdateRule {
  const char* name;
  void (*on_host)(const UpdateArrays& arrays, const void* constants);
  std::size_t constants_bytes;
};

// What `Stream::measure` adds to.
struct UpdateMeasure {
  SquareQuanta parameter_quanta;
  SquareQuanta result_quanta;
  SquareSum* parameter;  // sum of squares of the parameter, as it was
  SquareSum* result;     // and of the rule's result
};

}  // namespace trireme::device
