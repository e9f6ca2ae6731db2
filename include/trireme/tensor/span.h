#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include "trireme/core/span.h"

namespace trireme {

// Lets every call that takes a span take a tensor: `world->all_reduce(tensor).wait()`. The tensor
// must be on the CPU, contiguous, and of a dtype that dtype.h has; otherwise ConfigError says which
// it is not. The span keeps the tensor's storage alive. Autograd does not see what is written
// through it: hand over parameters and gradients by `.data()` or under torch::NoGradGuard. A
// parameter that belongs to an engine cannot be written to, and can be read where it is whole.
template <>
struct SpanOf<at::Tensor> {
  static Span of(const at::Tensor& tensor);
  static ConstSpan of_read(const at::Tensor& tensor);
};

// The dtype of the same name. Throws ConfigError if there is none.
Dtype dtype_of(at::ScalarType type);
std::optional<Dtype> find_dtype(at::ScalarType type);
at::ScalarType scalar_type_of(Dtype dtype);
// Of the CPU or a GPU of NVIDIA's; throws ConfigError for others.
Device device_of(at::Device device);
at::Device torch_device_of(Device device);

}  // namespace trireme
