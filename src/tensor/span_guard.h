#pragma once

#include <ATen/core/Tensor.h>

namespace trireme::detail {

// Throws where a collective must not read, or write, the memory of a tensor. Whoever puts memory
// behind tensors that is not simply theirs sets it; one for the process.
using SpanGuard = void (*)(const at::Tensor& tensor, bool write);
void set_span_guard(SpanGuard guard);

}  // namespace trireme::detail
