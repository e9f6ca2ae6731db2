#include "trireme/nn/layer_norm.h"

#include <algorithm>
#include <tuple>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

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
using Maybe = std::optional<Tensor>;

constexpr std::int64_t kWidest = 8192;        // kernels/norm.cuh
constexpr std::int64_t kWidestOfWarp = 1024;  // the same
constexpr std::int64_t kNormBlocks = 396;     // of backward, on any GPU

// The sum (undefined without a branch), its norm, and its rows' means and reciprocal deviations.
using Normed = std::tuple<Tensor, Tensor, Tensor, Tensor>;
// Gradients of what was normalised, of weight and offset, and of the bias where one is asked for.
using NormGradients = std::tuple<Tensor, Tensor, Tensor, Tensor>;

Tensor or_undefined(const Maybe& tensor) {
  return tensor.value_or(Tensor());
}

struct Rows {
  std::int64_t width;
  std::int64_t count;
  int threads;  // of a block
  std::int64_t of_block;
};

Rows rows_of(const Tensor& x) {
  const std::int64_t width = x.size(-1);
  const bool narrow = width <= kWidestOfWarp;
  return {width, x.numel() / width, narrow ? 128 : 256, narrow ? 4 : 1};
}

Normed norm_on_gpu(const Tensor& input,
                   const Maybe& branch,
                   const Maybe& bias,
                   const Tensor& weight,
                   const Tensor& offset,
                   double epsilon) {
  const Rows rows = rows_of(input);
  const auto in_float = input.options().dtype(at::kFloat);
  const Tensor sum = branch ? at::empty_like(input) : Tensor();
  const Tensor output = at::empty_like(input);
  const Tensor mean = at::empty({rows.count}, in_float);
  const Tensor scale = at::empty({rows.count}, in_float);
  kernels::NormArguments arguments{.rows = rows.count,
                                   .input = address_of(input),
                                   .branch = address_of(or_undefined(branch)),
                                   .bias = address_of(or_undefined(bias)),
                                   .sum = address_of(sum),
                                   .weight = address_of(weight),
                                   .offset = address_of(offset),
                                   .output = address_of(output),
                                   .mean = address_of(mean),
                                   .scale = address_of(scale),
                                   .epsilon = static_cast<float>(epsilon)};
  KernelKind kind = kind_of(
      input.scalar_type(),
      rows.width,
      {arguments.input, arguments.branch, arguments.bias, arguments.weight, arguments.offset});
  kind.width = rows.width;
  launch(input,
         "norm",
         !branch ? "layer_norm"
         : bias  ? "add_bias_layer_norm"
                 : "add_layer_norm",
         kind,
         {.blocks_x = divided_up(rows.count, rows.of_block), .threads = rows.threads},
         arguments);
  return {sum, output, mean, scale};
}

NormGradients norm_gradient_on_gpu(const Tensor& gradient,
                                   const Maybe& sum_gradient,
                                   const Tensor& input,
                                   const Tensor& weight,
                                   const Tensor& mean,
                                   const Tensor& scale,
                                   bool bias) {
  const Rows rows = rows_of(input);
  const std::int64_t blocks = std::min(kNormBlocks, divided_up(rows.count, rows.of_block));
  const Tensor result = at::empty_like(input);
  const Tensor partial = partial_sums(input, 3, blocks, rows.width);
  kernels::NormGradientArguments arguments{.rows = rows.count,
                                           .gradient = address_of(gradient),
                                           .sum_gradient = address_of(or_undefined(sum_gradient)),
                                           .input = address_of(input),
                                           .weight = address_of(weight),
                                           .mean = address_of(mean),
                                           .scale = address_of(scale),
                                           .result = address_of(result),
                                           .partial = address_of(partial)};
  KernelKind kind =
      kind_of(input.scalar_type(),
              rows.width,
              {arguments.gradient, arguments.sum_gradient, arguments.input, arguments.weight});
  kind.width = rows.width;
  const char* const names[] = {
      "norm_gradient", "norm_gradient_bias", "add_norm_gradient", "add_norm_gradient_bias"};
  launch(input,
         "norm",
         names[(sum_gradient ? 2 : 0) + (bias ? 1 : 0)],
         kind,
         {.blocks_x = blocks, .threads = rows.threads},
         arguments);
  std::vector<Tensor> sums = added(partial, bias ? 3 : 2, weight);
  sums.resize(3);
  return {result, sums[0], sums[1], sums[2]};
}

// The same by LibTorch's operators.
Normed norm_on_cpu(const Tensor& input,
                   const Maybe& branch,
                   const Maybe& bias,
                   const Tensor& weight,
                   const Tensor& offset,
                   double epsilon) {
  const Tensor sum = branch ? input + (bias ? *branch + *bias : *branch) : Tensor();
  const auto [output, mean, scale] =
      at::native_layer_norm(branch ? sum : input, {input.size(-1)}, weight, offset, epsilon);
  return {sum, output, mean, scale};
}

NormGradients norm_gradient_on_cpu(const Tensor& gradient,
                                   const Maybe& sum_gradient,
                                   const Tensor& input,
                                   const Tensor& weight,
                                   const Tensor& mean,
                                   const Tensor& scale,
                                   bool bias) {
  auto [result, of_weight, of_offset] = at::native_layer_norm_backward(
      gradient, input, {input.size(-1)}, mean, scale, weight, weight, {true, true, true});
  if (sum_gradient) {
    result = result + *sum_gradient;
  }
  return {
      result, of_weight, of_offset, bias ? result.reshape({-1, input.size(-1)}).sum(0) : Tensor()};
}

// Operators, so that engines see that parameters are used.
Normed call_norm(const Tensor& input,
                 const Maybe& branch,
                 const Maybe& bias,
                 const Tensor& weight,
                 const Tensor& offset,
                 double epsilon) {
  static const auto operation = c10::Dispatcher::singleton()
                                    .findSchemaOrThrow("trireme::layer_norm", "")
                                    .typed<decltype(norm_on_gpu)>();
  const at::AutoDispatchBelowADInplaceOrView guard;
  return operation.call(input, branch, bias, weight, offset, epsilon);
}

NormGradients call_norm_gradient(const Tensor& gradient,
                                 const Maybe& sum_gradient,
                                 const Tensor& input,
                                 const Tensor& weight,
                                 const Tensor& mean,
                                 const Tensor& scale,
                                 bool bias) {
  static const auto operation = c10::Dispatcher::singleton()
                                    .findSchemaOrThrow("trireme::layer_norm_gradient", "")
                                    .typed<decltype(norm_gradient_on_gpu)>();
  const at::AutoDispatchBelowADInplaceOrView guard;
  return operation.call(gradient, sum_gradient, input, weight, mean, scale, bias);
}

Maybe contiguous(const Tensor& tensor) {
  return tensor.defined() ? Maybe(tensor.contiguous()) : std::nullopt;
}

struct LayerNorm : torch::autograd::Function<LayerNorm> {
  static constexpr bool is_traceable = true;

  static Tensor forward(AutogradContext* context,
                        const Tensor& x,
                        const Tensor& weight,
                        const Tensor& offset,
                        double epsilon) {
    const auto [sum, output, mean, scale] =
        call_norm(x, std::nullopt, std::nullopt, weight, offset, epsilon);
    context->save_for_backward({x, weight, mean, scale});
    return output;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_second_gradients("layer_norm");
    const variable_list saved = context->get_saved_variables();
    const auto [of_x, of_weight, of_offset, none] = call_norm_gradient(
        gradients[0].contiguous(), std::nullopt, saved[0], saved[1], saved[2], saved[3], false);
    return {of_x, of_weight, of_offset, Tensor()};
  }
};

struct AddLayerNorm : torch::autograd::Function<AddLayerNorm> {
  static constexpr bool is_traceable = true;

  static variable_list forward(AutogradContext* context,
                               const Tensor& x,
                               const Tensor& branch,
                               const Maybe& bias,
                               const Tensor& weight,
                               const Tensor& offset,
                               double epsilon) {
    const auto [sum, output, mean, scale] = call_norm(x, branch, bias, weight, offset, epsilon);
    context->set_materialize_grads(false);
    context->saved_data["bias"] = bias.has_value();
    context->save_for_backward({sum, weight, mean, scale});
    return {sum, output};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_second_gradients("add_layer_norm");
    const variable_list saved = context->get_saved_variables();
    const Tensor of_output = gradients[1].defined() ? gradients[1] : at::zeros_like(saved[0]);
    const auto [of_sum, of_weight, of_offset, of_bias] =
        call_norm_gradient(of_output.contiguous(),
                           contiguous(gradients[0]),
                           saved[0],
                           saved[1],
                           saved[2],
                           saved[3],
                           context->saved_data["bias"].toBool());
    return {of_sum, of_sum, of_bias, of_weight, of_offset, Tensor()};
  }
};

void check_row(const char* what, const Tensor& row, const Tensor& x) {
  TRIREME_CHECK(row.dim() == 1 && x.dim() > 0 && row.size(0) == x.size(-1),
                "trireme::nn: a layer norm of {} columns needs as many elements of its {}, found a "
                "tensor of {} dimensions and {} elements",
                {x.dim() > 0 ? x.size(-1) : 0, what, row.dim(), row.numel()});
}

bool fits(const Tensor& x) {
  return x.numel() > 0 && x.size(-1) <= kWidest;
}

}  // namespace

Tensor layer_norm_by_kernels(const Tensor& x,
                             const Tensor& weight,
                             const Tensor& offset,
                             double epsilon) {
  return LayerNorm::apply(x.contiguous(), weight.contiguous(), offset.contiguous(), epsilon);
}

AddedAndNormed add_layer_norm_by_kernels(const Tensor& x,
                                         const Tensor& branch,
                                         const Maybe& bias,
                                         const Tensor& weight,
                                         const Tensor& offset,
                                         double epsilon) {
  const variable_list results = AddLayerNorm::apply(x.contiguous(),
                                                    branch.contiguous(),
                                                    contiguous(or_undefined(bias)),
                                                    weight.contiguous(),
                                                    offset.contiguous(),
                                                    epsilon);
  return {results[0], results[1]};
}

Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& offset, double epsilon) {
  check_row("weight", weight, x);
  check_row("offset", offset, x);
  if (can_use_kernels({x, weight, offset}) && fits(x)) {
    return layer_norm_by_kernels(x, weight, offset, epsilon);
  }
  return at::layer_norm(x, {x.size(-1)}, weight, offset, epsilon);
}

AddedAndNormed add_layer_norm(const Tensor& x,
                              const Tensor& branch,
                              const std::optional<Tensor>& bias,
                              const Tensor& weight,
                              const Tensor& offset,
                              double epsilon) {
  check_row("weight", weight, x);
  check_row("offset", offset, x);
  TRIREME_CHECK(branch.sizes() == x.sizes(),
                "trireme::nn::add_layer_norm: expected a branch of {} elements in {} dimensions, "
                "as x has, found {} in {}",
                {x.numel(), x.dim(), branch.numel(), branch.dim()});
  const Tensor added_bias = or_undefined(bias);
  if (added_bias.defined()) {
    check_row("bias", added_bias, x);
  }
  if (can_use_kernels({x, branch, added_bias, weight, offset}) && fits(x)) {
    return add_layer_norm_by_kernels(x, branch, added_bias, weight, offset, epsilon);
  }
  const Tensor sum = x + (added_bias.defined() ? branch + added_bias : branch);
  return {sum, at::layer_norm(sum, {x.size(-1)}, weight, offset, epsilon)};
}

}  // namespace trireme::nn

TORCH_LIBRARY_FRAGMENT(trireme, library) {
  library.def(
      "layer_norm(Tensor input, Tensor? branch, Tensor? bias, Tensor weight, Tensor offset, "
      "float epsilon) -> (Tensor, Tensor, Tensor, Tensor)");
  library.def(
      "layer_norm_gradient(Tensor gradient, Tensor? sum_gradient, Tensor input, Tensor weight, "
      "Tensor mean, Tensor scale, bool bias) -> (Tensor, Tensor, Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(trireme, CUDA, library) {
  library.impl("layer_norm", TORCH_FN(trireme::nn::norm_on_gpu));
  library.impl("layer_norm_gradient", TORCH_FN(trireme::nn::norm_gradient_on_gpu));
}
TORCH_LIBRARY_IMPL(trireme, CPU, library) {
  library.impl("layer_norm", TORCH_FN(trireme::nn::norm_on_cpu));
  library.impl("layer_norm_gradient", TORCH_FN(trireme::nn::norm_gradient_on_cpu));
}
