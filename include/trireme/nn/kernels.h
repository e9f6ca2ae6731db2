#pragma once

#include <ATen/core/Tensor.h>

namespace trireme::nn {

// Functions of this folder are made of few kernels of their own on a GPU, and of LibTorch's
// operators elsewhere: the same functions of the same tensors, rounded in other places. A tensor
// goes the first way if it is on a GPU, of float32, bfloat16 or float16, autocast is off, and the
// other tensors of the call have its type; each function says what else it wants. The kernels give
// the same bits every time; where LibTorch takes its own, that is up to LibTorch
// (Context::setDeterministicAlgorithms; trireme::use_gpu sets it).
//
// Gradients are those of LibTorch's formulas; gradients of gradients are refused. Kernels compute
// in float32 and round results, and gradients of parameters, once.
bool has_kernels(const at::Tensor& tensor);

}  // namespace trireme::nn
