#include "trireme/nn/attention.h"

#include <array>
#include <tuple>
#include <vector>

#include <ATen/Context.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/functional/linear.h>

#include "device/kernel_launch.h"
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

constexpr std::int64_t kWidestHead = 128;
constexpr std::int64_t kHeadStep = 8;
constexpr int kOldestArchitecture = 80;
constexpr int kArchitectureOfCudnn = 90;
constexpr long kOldestCudnn = 91500;
constexpr std::int64_t kShortestOfCudnn = 64;
constexpr Address kAlignment = 16;

// Queries, keys and values, [batch, heads, length, part] each, as they lie in qkv.
std::vector<Tensor> three_of(const Tensor& qkv, std::int64_t heads) {
  return qkv.reshape({qkv.size(0), qkv.size(1), 3, heads, qkv.size(2) / 3 / heads})
      .permute({2, 0, 3, 1, 4})
      .unbind(0);
}

// [batch, length, width] as [batch, heads, length, part].
Tensor by_heads(const Tensor& x, std::int64_t heads) {
  return x.view({x.size(0), x.size(1), heads, x.size(2) / heads}).transpose(1, 2);
}

Tensor side_by_side(const Tensor& by_heads) {
  const Tensor x = by_heads.transpose(1, 2);
  return x.reshape({x.size(0), x.size(1), x.size(2) * x.size(3)});
}

// What flash attention leaves for its backward: log of the sums, then what differs between devices.
struct Flash {
  Tensor output;
  std::array<Tensor, 5> left;
  std::int64_t most_queries = 0, most_keys = 0;
};

// cuDNN's forward is faster than flash attention's there, and has the same bits every time, which
// its backward has not. What it leaves is what flash attention's backward takes.
bool cudnn_takes(const Tensor& q) {
  const at::Context& context = at::globalContext();
  return context.userEnabledCuDNNSDP() && at::Context::hasCuDNN() &&
         at::Context::versionCuDNN() >= kOldestCudnn && q.size(2) >= kShortestOfCudnn &&
         device::architecture_of(q.device().index()) == kArchitectureOfCudnn;
}

Flash flash(const std::vector<Tensor>& qkv, bool causal) {
  if (!qkv[0].is_cuda()) {
    auto [output, sums] =
        at::_scaled_dot_product_flash_attention_for_cpu(qkv[0], qkv[1], qkv[2], 0.0, causal);
    return {output, {sums}};
  }
  if (cudnn_takes(qkv[0])) {
    auto [output, sums, begins, key_begins, most_queries, most_keys, seed, offset, mask] =
        at::_scaled_dot_product_cudnn_attention(
            qkv[0], qkv[1], qkv[2], {}, /*compute_log_sumexp=*/true, 0.0, causal);
    return {output,
            {sums.squeeze(-1), Tensor(), Tensor(), seed, offset},
            qkv[0].size(2),
            qkv[0].size(2)};
  }
  auto [output, sums, begins, key_begins, most_queries, most_keys, seed, offset, mask] =
      at::_scaled_dot_product_flash_attention(qkv[0], qkv[1], qkv[2], 0.0, causal);
  return {output,
          {sums, begins, key_begins, seed, offset},
          most_queries.expect_int(),
          most_keys.expect_int()};
}

std::tuple<Tensor, Tensor, Tensor> flash_gradients(const Tensor& gradient,
                                                   const std::vector<Tensor>& qkv,
                                                   const Flash& made,
                                                   bool causal) {
  const auto& [sums, begins, key_begins, seed, offset] = made.left;
  return gradient.is_cuda() ? at::_scaled_dot_product_flash_attention_backward(gradient,
                                                                               qkv[0],
                                                                               qkv[1],
                                                                               qkv[2],
                                                                               made.output,
                                                                               sums,
                                                                               begins,
                                                                               key_begins,
                                                                               made.most_queries,
                                                                               made.most_keys,
                                                                               0.0,
                                                                               causal,
                                                                               seed,
                                                                               offset)
                            : at::_scaled_dot_product_flash_attention_for_cpu_backward(
                                  gradient, qkv[0], qkv[1], qkv[2], made.output, sums, 0.0, causal);
}

// The three as one, [rows, 3 * width], and the sums of its columns.
std::tuple<Tensor, Tensor> packed(const Tensor& q, const Tensor& k, const Tensor& v) {
  const std::int64_t width = q.size(-1);
  const std::int64_t rows = q.numel() / width;
  if (!q.is_cuda()) {
    const Tensor all = at::cat({q, k, v}, -1).view({rows, 3 * width});
    return {all, all.sum(0)};
  }
  const Tensor output = at::empty({rows, 3 * width}, q.options());
  const KernelKind kind =
      kind_of(q.scalar_type(), width, {address_of(q), address_of(k), address_of(v)});
  const Grid grid = grid_of_columns(rows, 3 * width, kind.pack);
  const Tensor partial = partial_sums(q, 1, grid.blocks_y, 3 * width);
  kernels::PackArguments arguments{.rows = rows,
                                   .width = width,
                                   .parts = {address_of(q), address_of(k), address_of(v)},
                                   .output = address_of(output),
                                   .partial = address_of(partial)};
  launch(q, "columns", "pack_gradients", kind, grid, arguments);
  return {output, added(partial, 1, q)[0]};
}

// Attention of qkv: with the linear layer that made it (x, weight and bias are defined), or alone.
struct Attention : torch::autograd::Function<Attention> {
  static constexpr bool is_traceable = true;

  static Tensor forward(AutogradContext* context,
                        const Tensor& x,
                        const std::optional<Tensor>& weight,
                        const std::optional<Tensor>& bias,
                        std::int64_t heads,
                        bool causal) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const Tensor qkv = weight ? at::linear(x, *weight, *bias) : x;
    const Flash made = flash(three_of(qkv, heads), causal);
    const Tensor output = side_by_side(made.output);
    variable_list saved = {qkv, output, weight ? x : Tensor(), weight.value_or(Tensor())};
    saved.insert(saved.end(), made.left.begin(), made.left.end());
    context->save_for_backward(std::move(saved));
    context->saved_data["heads"] = heads;
    context->saved_data["bias"] = bias && bias->defined();
    context->saved_data["causal"] = causal;
    context->saved_data["most"] = std::vector<std::int64_t>{made.most_queries, made.most_keys};
    return output;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_second_gradients("attention");
    const variable_list saved = context->get_saved_variables();
    const Tensor& qkv = saved[0];
    const Tensor& x = saved[2];
    const Tensor& weight = saved[3];
    const std::int64_t heads = context->saved_data["heads"].toInt();
    const std::vector<std::int64_t> most = context->saved_data["most"].toIntVector();
    const at::AutoDispatchBelowADInplaceOrView guard;
    const auto [q, k, v] = flash_gradients(by_heads(gradients[0].contiguous(), heads),
                                           three_of(qkv, heads),
                                           {by_heads(saved[1], heads),
                                            {saved[4], saved[5], saved[6], saved[7], saved[8]},
                                            most[0],
                                            most[1]},
                                           context->saved_data["causal"].toBool());
    const auto [of_qkv, of_bias] = packed(
        side_by_side(q).contiguous(), side_by_side(k).contiguous(), side_by_side(v).contiguous());
    if (!weight.defined()) {
      return {of_qkv.view_as(qkv), Tensor(), Tensor(), Tensor(), Tensor()};
    }
    const Tensor rows = x.reshape({-1, x.size(-1)});
    return {context->needs_input_grad(0) ? of_qkv.mm(weight).view_as(x) : Tensor(),
            context->needs_input_grad(1) ? of_qkv.t().mm(rows) : Tensor(),
            context->saved_data["bias"].toBool() ? of_bias : Tensor(),
            Tensor(),
            Tensor()};
  }
};

bool flash_takes(const Tensor& x, std::int64_t part) {
  return x.element_size() == 2 && x.numel() > 0 && part % kHeadStep == 0 && part <= kWidestHead &&
         at::globalContext().userEnabledFlashSDP() &&
         device::architecture_of(x.device().index()) >= kOldestArchitecture;
}

void check_qkv(std::int64_t columns, std::int64_t heads, std::int64_t dimensions) {
  TRIREME_CHECK(dimensions == 3 && heads > 0 && columns % (3 * heads) == 0,
                "trireme::nn: attention of {} heads needs [batch, length, columns] and for each "
                "head as many columns of queries, keys and values, found {} columns in {} "
                "dimensions",
                {heads, columns, dimensions});
}

}  // namespace

Tensor self_attention_by_kernels(
    const Tensor& x, const Tensor& weight, const Tensor& bias, std::int64_t heads, bool causal) {
  return Attention::apply(
      x.contiguous(), std::optional(weight), std::optional(bias), heads, causal);
}

Tensor attention_by_kernels(const Tensor& qkv, std::int64_t heads, bool causal) {
  return Attention::apply(
      qkv.contiguous(), std::optional<Tensor>(), std::optional<Tensor>(), heads, causal);
}

Tensor attention(const Tensor& qkv, std::int64_t heads, bool causal) {
  check_qkv(qkv.dim() > 0 ? qkv.size(-1) : 0, heads, qkv.dim());
  const bool aligned = address_of(qkv) % kAlignment == 0;
  if (can_use_kernels({qkv}) && aligned && flash_takes(qkv, qkv.size(2) / 3 / heads)) {
    return attention_by_kernels(qkv, heads, causal);
  }
  // Backward stacks the three gradients of unbind; those of three selections it would add up.
  const std::vector<Tensor> parts = three_of(qkv, heads);
  return side_by_side(
      at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, causal));
}

Tensor self_attention(
    const Tensor& x, const Tensor& weight, const Tensor& bias, std::int64_t heads, bool causal) {
  check_qkv(weight.dim() > 0 ? weight.size(0) : 0, heads, x.dim());
  if (can_use_kernels({x, weight, bias}) && weight.numel() > 0 &&
      flash_takes(x, weight.size(0) / 3 / heads)) {
    return self_attention_by_kernels(x, weight, bias, heads, causal);
  }
  // As a module computes it, bit for bit: at::linear adds the bias before it rounds.
  return attention(torch::nn::functional::linear(x, weight, bias), heads, causal);
}

}  // namespace trireme::nn
