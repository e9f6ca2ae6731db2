#include "trireme/nn/gelu.h"

#include <tuple>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/linear.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>
#include <torch/nn/functional/linear.h>

#include "nn/by_kernels.h"
#include "nn/kernel_launch.h"
#include "nn/partial_sums.h"
#include "trireme/core/error.h"
#include "trireme/nn/kernels.h"

namespace trireme::nn {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr char kTanh[] = "tanh";

Tensor gelu_on_gpu(const Tensor& x, const Tensor& bias) {
  const std::int64_t width = x.size(-1);
  const Tensor output = at::empty_like(x);
  kernels::GeluArguments arguments{.rows = x.numel() / width,
                                   .width = width,
                                   .input = address_of(x),
                                   .bias = address_of(bias),
                                   .output = address_of(output),
                                   .gradient = 0,
                                   .partial = 0};
  const KernelKind kind = kind_of(x.scalar_type(), width, {arguments.input, arguments.bias});
  launch(x, "columns", "gelu", kind, grid_of_columns(arguments.rows, width, kind.pack), arguments);
  return output;
}

// Of x, and of the bias.
std::tuple<Tensor, Tensor> gelu_gradient_on_gpu(const Tensor& gradient,
                                                const Tensor& x,
                                                const Tensor& bias) {
  const std::int64_t width = x.size(-1);
  const std::int64_t rows = x.numel() / width;
  const Tensor result = at::empty_like(x);
  const KernelKind kind =
      kind_of(x.scalar_type(), width, {address_of(x), address_of(bias), address_of(gradient)});
  const Grid grid = grid_of_columns(rows, width, kind.pack, kLargeBlocksAtOnce);
  const Tensor partial = partial_sums(x, 1, grid.blocks_y, width);
  kernels::GeluArguments arguments{.rows = rows,
                                   .width = width,
                                   .input = address_of(x),
                                   .bias = address_of(bias),
                                   .output = address_of(result),
                                   .gradient = address_of(gradient),
                                   .partial = address_of(partial)};
  launch(x, "columns", "gelu_gradient", kind, grid, arguments);
  return {result, added(partial, 1, bias)[0]};
}

// The same by LibTorch's operators.
Tensor gelu_on_cpu(const Tensor& x, const Tensor& bias) {
  return at::gelu(x + bias, kTanh);
}

std::tuple<Tensor, Tensor> gelu_gradient_on_cpu(const Tensor& gradient,
                                                const Tensor& x,
                                                const Tensor& bias) {
  const Tensor result = at::gelu_backward(gradient, x + bias, kTanh);
  return {result, result.reshape({-1, x.size(-1)}).sum(0)};
}

struct BiasGelu : torch::autograd::Function<BiasGelu> {
  static constexpr bool is_traceable = true;

  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& bias) {
    static const auto operation = c10::Dispatcher::singleton()
                                      .findSchemaOrThrow("trireme::bias_gelu", "")
                                      .typed<decltype(gelu_on_gpu)>();
    context->save_for_backward({x, bias});
    const at::AutoDispatchBelowADInplaceOrView guard;
    return operation.call(x, bias);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_second_gradients("bias_gelu");
    static const auto operation = c10::Dispatcher::singleton()
                                      .findSchemaOrThrow("trireme::bias_gelu_gradient", "")
                                      .typed<decltype(gelu_gradient_on_gpu)>();
    const variable_list saved = context->get_saved_variables();
    const at::AutoDispatchBelowADInplaceOrView guard;
    const auto [of_x, of_bias] = operation.call(gradients[0].contiguous(), saved[0], saved[1]);
    return {of_x, of_bias};
  }
};

void check_bias(const Tensor& bias, std::int64_t columns) {
  TRIREME_CHECK(bias.dim() == 1 && bias.size(0) == columns,
                "trireme::nn: GELU of {} columns needs a bias of as many elements, found a tensor "
                "of {} dimensions and {} elements",
                {columns, bias.dim(), bias.numel()});
}

}  // namespace

Tensor bias_gelu_by_kernels(const Tensor& x, const Tensor& bias) {
  return BiasGelu::apply(x.contiguous(), bias.contiguous());
}

Tensor bias_gelu(const Tensor& x, const Tensor& bias) {
  check_bias(bias, x.dim() > 0 ? x.size(-1) : 0);
  return can_use_kernels({x, bias}) && x.numel() > 0 ? bias_gelu_by_kernels(x, bias)
                                                     : at::gelu(x + bias, kTanh);
}

Tensor linear_gelu(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  check_bias(bias, weight.dim() > 0 ? weight.size(0) : 0);
  return can_use_kernels({x, weight, bias}) && x.numel() > 0 && weight.numel() > 0
             ? bias_gelu_by_kernels(at::linear(x, weight), bias)
             : at::gelu(torch::nn::functional::linear(x, weight, bias), kTanh);
}

}  // namespace trireme::nn

TORCH_LIBRARY_FRAGMENT(trireme, library) {
  library.def("bias_gelu(Tensor x, Tensor bias) -> Tensor");
  library.def("bias_gelu_gradient(Tensor gradient, Tensor x, Tensor bias) -> (Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(trireme, CUDA, library) {
  library.impl("bias_gelu", TORCH_FN(trireme::nn::gelu_on_gpu));
  library.impl("bias_gelu_gradient", TORCH_FN(trireme::nn::gelu_gradient_on_gpu));
}
TORCH_LIBRARY_IMPL(trireme, CPU, library) {
  library.impl("bias_gelu", TORCH_FN(trireme::nn::gelu_on_cpu));
  library.impl("bias_gelu_gradient", TORCH_FN(trireme::nn::gelu_gradient_on_cpu));
}
