#include "trireme/nn/cross_entropy.h"

#include <algorithm>
#include <tuple>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/functional/loss.h>

#include "nn/by_kernels.h"
#include "nn/kernel_launch.h"
#include "nn/word_scores.h"
#include "trireme/core/error.h"
#include "trireme/nn/kernels.h"

namespace trireme::nn {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::int64_t kScoresOfChunk = std::int64_t{1} << 28;
constexpr std::int64_t kRowStep = 128;    // of a matrix product's tiles
constexpr std::int64_t kColumnStep = 64;  // 128 bytes of 16-bit numbers
constexpr int kThreadsOfRow = 512;        // kernels/cross_entropy.cuh
constexpr int kThreadsOfBlock = 256;      // kernels/columns.cuh

// Scores [rows, at least `words`] become the gradients of the sum of the losses of their rows,
// which are returned. Columns after the words become zeros.
Tensor cross_entropy_in_place(const Tensor& scores,
                              std::int64_t words,
                              const Tensor& targets,
                              std::int64_t ignored) {
  if (!scores.is_cuda()) {
    const Tensor logarithms = at::log_softmax(scores.slice(1, 0, words), 1);
    const Tensor counts = targets.ne(ignored);
    const Tensor places = targets.where(counts, 0).unsqueeze(1);
    const Tensor losses = -logarithms.gather(1, places).squeeze(1) * counts;
    const Tensor shares = logarithms.exp().scatter_add(
        1, places, at::empty(places.sizes(), scores.options()).fill_(-1));
    scores.zero_();
    scores.slice(1, 0, words).copy_(shares * counts.unsqueeze(1));
    return losses;
  }
  const Tensor losses = at::empty({scores.size(0)}, scores.options().dtype(at::kFloat));
  kernels::CrossEntropyArguments arguments{.rows = scores.size(0),
                                           .words = words,
                                           .stride = scores.size(1),
                                           .scores = address_of(scores),
                                           .targets = address_of(targets),
                                           .losses = address_of(losses),
                                           .ignored = ignored};
  launch(scores,
         "cross_entropy",
         "cross_entropy",
         kind_of(scores.scalar_type(), scores.size(1), {arguments.scores}),
         {.blocks_x = scores.size(0), .threads = kThreadsOfRow},
         arguments);
  return losses;
}

// Of one number, on the GPU: rounded once.
Tensor scaled(const Tensor& input, const Tensor& factor, at::ScalarType type) {
  if (!input.is_cuda()) {
    return (input * factor).to(type);
  }
  const Tensor output = at::empty(input.sizes(), input.options().dtype(type));
  const Tensor in_float = factor.to(at::kFloat);
  kernels::ScaleArguments arguments{.numel = input.numel(),
                                    .input = address_of(input),
                                    .factor = address_of(in_float),
                                    .output = address_of(output)};
  const KernelKind kind = kind_of(type, input.numel(), {});
  launch(input,
         "columns",
         input.scalar_type() == type ? "scale_elements" : "scale_sums",
         kind,
         {.blocks_x = divided_up(input.numel(), std::int64_t{kThreadsOfBlock} * kind.pack)},
         arguments);
  return output;
}

// sums = (sums +) scores' x, in float32 of 16-bit elements.
void add_product(const Tensor& sums, const Tensor& scores, const Tensor& x, bool first) {
  Tensor out = sums;
  const Tensor across = scores.t();
  if (sums.scalar_type() == x.scalar_type()) {
    first ? at::mm_out(out, across, x) : at::addmm_out(out, out, across, x);
  } else if (first) {
    at::mm_out(out, across, x, sums.scalar_type());
  } else {
    at::addmm_out(out, out, across, x, sums.scalar_type());
  }
}

struct LinearCrossEntropy : torch::autograd::Function<LinearCrossEntropy> {
  static constexpr bool is_traceable = true;

  static Tensor forward(AutogradContext* context,
                        const Tensor& x,
                        const Tensor& weight,
                        const Tensor& targets,
                        std::int64_t ignored,
                        std::int64_t rows_of_chunk,
                        bool of_x,
                        bool of_weight) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const std::int64_t rows = x.size(0);
    const std::int64_t words = weight.size(0);
    const std::int64_t columns = divided_up(words, kColumnStep) * kColumnStep;
    const Tensor padded =
        columns > words ? at::constant_pad_nd(weight, {0, 0, 0, columns - words}) : weight;
    const at::ScalarType wide = x.element_size() == 2 ? at::kFloat : x.scalar_type();
    const Tensor memory = at::empty({std::min(rows, rows_of_chunk), columns}, x.options());
    const Tensor losses = at::empty({rows}, x.options().dtype(wide));
    const Tensor x_gradient = of_x ? at::empty_like(x) : Tensor();
    const Tensor sums =
        of_weight ? at::empty({columns, x.size(1)}, x.options().dtype(wide)) : Tensor();
    for (std::int64_t begin = 0; begin < rows; begin += rows_of_chunk) {
      const std::int64_t end = std::min(rows, begin + rows_of_chunk);
      const Tensor some = x.slice(0, begin, end);
      Tensor scores = memory.slice(0, 0, end - begin);
      at::mm_out(scores, some, padded.t());
      losses.slice(0, begin, end)
          .copy_(cross_entropy_in_place(scores, words, targets.slice(0, begin, end), ignored));
      if (of_x) {
        Tensor out = x_gradient.slice(0, begin, end);
        at::mm_out(out, scores, padded);
      }
      if (of_weight) {
        add_product(sums, scores, some, begin == 0);
      }
    }
    const Tensor count = targets.ne(ignored).sum().to(wide);
    context->save_for_backward({x_gradient, of_weight ? sums.slice(0, 0, words) : Tensor(), count});
    context->saved_data["type"] = static_cast<std::int64_t>(x.scalar_type());
    return losses.sum() / count;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_second_gradients("linear_cross_entropy");
    const variable_list saved = context->get_saved_variables();
    const auto type = static_cast<at::ScalarType>(context->saved_data["type"].toInt());
    const at::AutoDispatchBelowADInplaceOrView guard;
    // Where all targets are ignored, the mean is of nothing, and depends on nothing.
    const Tensor factor =
        at::where(saved[2] > 0, gradients[0] / saved[2], at::zeros_like(saved[2]));
    variable_list results(7);
    for (std::size_t i = 0; i < 2; ++i) {
      results[i] = saved[i].defined() ? scaled(saved[i], factor, type) : Tensor();
    }
    return results;
  }
};

}  // namespace

std::int64_t rows_of_chunk(std::int64_t rows, std::int64_t words) {
  const std::int64_t chunks = divided_up(rows * words, kScoresOfChunk);
  return divided_up(divided_up(rows, std::max<std::int64_t>(1, chunks)), kRowStep) * kRowStep;
}

Tensor linear_cross_entropy_by_kernels(const Tensor& x,
                                       const Tensor& weight,
                                       const Tensor& targets,
                                       std::int64_t ignored,
                                       std::int64_t rows_of_chunk) {
  const bool keeps = at::GradMode::is_enabled();
  return LinearCrossEntropy::apply(x.contiguous(),
                                   weight.contiguous(),
                                   targets.contiguous(),
                                   ignored,
                                   rows_of_chunk,
                                   keeps && x.requires_grad(),
                                   keeps && weight.requires_grad());
}

Tensor linear_cross_entropy(const Tensor& x,
                            const Tensor& weight,
                            const Tensor& targets,
                            std::int64_t ignored) {
  TRIREME_CHECK(x.dim() > 1 && weight.dim() == 2 && x.size(-1) == weight.size(1),
                "trireme::nn::linear_cross_entropy: expected x [..., columns] and weight [words, "
                "columns], found {} columns of x and {} of weight",
                {x.dim() > 0 ? x.size(-1) : 0, weight.dim() > 0 ? weight.size(-1) : 0});
  TRIREME_CHECK(
      targets.scalar_type() == at::kLong && targets.sizes() == x.sizes().slice(0, x.dim() - 1) &&
          targets.device() == x.device(),
      "trireme::nn::linear_cross_entropy: expected a target (int64) for each of {} rows of "
      "x, on its device, found {} of type {}",
      {x.numel() / std::max<std::int64_t>(1, x.size(-1)),
       targets.numel(),
       c10::toString(targets.scalar_type())});
  if (can_use_kernels({x, weight}) && x.numel() > 0 && weight.numel() > 0) {
    const Tensor rows = x.flatten(0, -2);
    return linear_cross_entropy_by_kernels(
        rows, weight, targets.flatten(), ignored, rows_of_chunk(rows.size(0), weight.size(0)));
  }
  const Tensor scores = padded_word_scores(x, weight).flatten(0, -2);
  return torch::nn::functional::cross_entropy(
      scores.element_size() == 2 ? scores.to(at::kFloat) : scores,
      targets_in(scores, weight.size(0), targets.flatten(), ignored),
      torch::nn::functional::CrossEntropyFuncOptions().ignore_index(ignored));
}

}  // namespace trireme::nn
