#include "trireme/parallel/sync_batch_norm.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/functional/batchnorm.h>
#include <torch/nn/init.h>

#include "trireme/core/error.h"
#include "trireme/tensor/span.h"

namespace trireme {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// [channels] to [1, channels, 1, ...], to go with the input.
Tensor along_channels(const Tensor& values, const Tensor& input) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(input.dim()), 1);
  shape[1] = input.size(1);
  return values.view(shape);
}

std::vector<std::int64_t> all_but_channels(const Tensor& input) {
  std::vector<std::int64_t> dimensions = {0};
  for (std::int64_t d = 2; d < input.dim(); ++d) {
    dimensions.push_back(d);
  }
  return dimensions;
}

// Keeps the communicator alive as long as the graph.
struct RanksHolder : torch::CustomClassHolder {
  explicit RanksHolder(std::shared_ptr<Communicator> r) : ranks(std::move(r)) {}
  std::shared_ptr<Communicator> ranks;
};

c10::IValue hold(const std::shared_ptr<Communicator>& ranks) {
  return c10::IValue::make_capsule(c10::make_intrusive<RanksHolder>(ranks));
}

std::shared_ptr<Communicator> held_in(AutogradContext& context) {
  const auto holder = context.saved_data["ranks"].toCapsule();
  return static_cast<RanksHolder*>(holder.get())->ranks;
}

// The sum over the ranks, as a graph sees it: each rank's sum depends on the values of all, so the
// gradient of one's values is the sum of all ranks' gradients.
class SumOverRanks : public torch::autograd::Function<SumOverRanks> {
 public:
  static Tensor forward(AutogradContext* context,
                        const Tensor& values,
                        const std::shared_ptr<Communicator>& ranks) {
    context->saved_data["ranks"] = hold(ranks);
    Tensor sum = values.clone(at::MemoryFormat::Contiguous);
    ranks->all_reduce(sum).wait();
    return sum;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    return {SumOverRanks::apply(gradients[0], held_in(*context)), Tensor()};
  }
};

struct Statistics {
  Tensor mean;
  Tensor variance;
  Tensor scale;  // what deviations from the mean are multiplied by
  double count = 0;
};

// Count, sum and sum of squares of this rank; the ranks' are added up in their order.
Statistics statistics_of(const Tensor& input,
                         double eps,
                         const std::shared_ptr<Communicator>& ranks) {
  const auto dimensions = all_but_channels(input);
  const Tensor exact = input.to(torch::kDouble);
  const std::int64_t channels = input.size(1);
  const double own = static_cast<double>(input.numel()) / static_cast<double>(channels);
  const Tensor sums = SumOverRanks::apply(torch::cat({exact.sum(dimensions),
                                                      exact.pow(2).sum(dimensions),
                                                      torch::full({1}, own, torch::kDouble)}),
                                          ranks);
  Statistics result;
  result.count = sums[2 * channels].item<double>();
  result.mean = sums.narrow(0, 0, channels) / result.count;
  result.variance =
      (sums.narrow(0, channels, channels) / result.count - result.mean.pow(2)).clamp_min(0);
  result.scale = (result.variance + eps).rsqrt();
  return result;
}

Tensor normalized(const Tensor& input, const Tensor& mean, const Tensor& scale) {
  return ((input.to(torch::kDouble) - along_channels(mean, input)) * along_channels(scale, input))
      .to(input.scalar_type());
}

// The normalisation with statistics of all ranks.
class Normalize : public torch::autograd::Function<Normalize> {
 public:
  static variable_list forward(AutogradContext* context,
                               const Tensor& input,
                               const Tensor& weight,
                               const Tensor& bias,
                               double eps,
                               const std::shared_ptr<Communicator>& ranks) {
    const Statistics statistics = statistics_of(input, eps, ranks);
    const Tensor normal = normalized(input, statistics.mean, statistics.scale);
    // The input and not what became of it: a gradient that is differentiated again depends on it.
    context->save_for_backward({input, weight, statistics.mean, statistics.scale});
    context->saved_data["count"] = statistics.count;
    context->saved_data["eps"] = eps;
    context->saved_data["affine"] = weight.defined();
    context->saved_data["ranks"] = hold(ranks);
    Tensor output = normal;
    if (weight.defined()) {
      // In the precision of the weight, which may be higher than the input's.
      output = (normal * along_channels(weight, input) + along_channels(bias, input))
                   .to(input.scalar_type());
    }
    context->mark_non_differentiable({statistics.mean, statistics.variance});
    return {output,
            statistics.mean,
            statistics.variance,
            torch::scalar_tensor(statistics.count, torch::kDouble)};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const Tensor& input = saved[0];
    Tensor mean = saved[2];
    Tensor scale = saved[3];
    const bool affine = context->saved_data["affine"].toBool();
    const double count = context->saved_data["count"].toDouble();
    const std::shared_ptr<Communicator> ranks = held_in(*context);
    if (at::GradMode::is_enabled()) {
      // create_graph: the statistics are functions of the input then, of all ranks' inputs.
      const Statistics again = statistics_of(input, context->saved_data["eps"].toDouble(), ranks);
      mean = again.mean;
      scale = again.scale;
    }
    const Tensor normal = normalized(input, mean, scale);
    const auto dimensions = all_but_channels(normal);
    const std::int64_t channels = normal.size(1);
    const Tensor gradient = gradients[0].to(torch::kDouble);
    const Tensor exact = normal.to(torch::kDouble);
    const Tensor sum = gradient.sum(dimensions);
    const Tensor product = (gradient * exact).sum(dimensions);
    // What the statistics of all ranks contribute to the gradient of the input.
    const Tensor both = SumOverRanks::apply(torch::cat({sum, product}), ranks);
    const Tensor mean_gradient = both.narrow(0, 0, channels) / count;
    const Tensor mean_product = both.narrow(0, channels, channels) / count;
    Tensor factor = scale;
    if (affine) {
      factor = factor * saved[1].to(torch::kDouble);
    }
    const Tensor input_gradient = ((gradient - along_channels(mean_gradient, normal) -
                                    exact * along_channels(mean_product, normal)) *
                                   along_channels(factor, normal))
                                      .to(normal.scalar_type());
    // Of weight and bias each rank gives its own part; the engine adds them up.
    return {input_gradient,
            affine ? product.to(saved[1].scalar_type()) : Tensor(),
            affine ? sum.to(saved[1].scalar_type()) : Tensor(),
            Tensor(),
            Tensor()};
  }
};

}  // namespace

SyncBatchNormImpl::SyncBatchNormImpl(const torch::nn::BatchNormOptions& options_,
                                     std::shared_ptr<Communicator> ranks)
    : options(options_), ranks_(std::move(ranks)) {
  TRIREME_CHECK(ranks_, "SyncBatchNorm: the world is a null pointer");
  reset();
}

void SyncBatchNormImpl::reset() {
  const std::int64_t channels = options.num_features();
  if (options.affine()) {
    weight = register_parameter("weight", torch::ones({channels}));
    bias = register_parameter("bias", torch::zeros({channels}));
  }
  if (options.track_running_stats()) {
    running_mean = register_buffer("running_mean", torch::zeros({channels}));
    running_var = register_buffer("running_var", torch::ones({channels}));
    num_batches_tracked = register_buffer("num_batches_tracked", torch::tensor(0, torch::kLong));
  }
}

Tensor SyncBatchNormImpl::forward(const Tensor& input) {
  TRIREME_CHECK(input.dim() >= 2 && input.size(1) == options.num_features(),
                "SyncBatchNorm: expected an input [batch, {}, ...], found sizes {}",
                {options.num_features(), input.sizes()});
  if (!is_training() && options.track_running_stats()) {
    return torch::batch_norm(
        input, weight, bias, running_mean, running_var, false, 0, options.eps(), false);
  }
  const variable_list outputs = Normalize::apply(input, weight, bias, options.eps(), ranks_);
  if (is_training() && options.track_running_stats()) {
    const torch::NoGradGuard no_grad;
    num_batches_tracked.add_(1);
    const double momentum =
        options.momentum().has_value()
            ? *options.momentum()
            : 1.0 / static_cast<double>(num_batches_tracked.item<std::int64_t>());
    const double count = outputs[3].item<double>();
    running_mean.lerp_(outputs[1].to(running_mean.scalar_type()), momentum);
    running_var.lerp_(
        (outputs[2] * (count / std::max(1.0, count - 1))).to(running_var.scalar_type()), momentum);
  }
  return outputs[0];
}

}  // namespace trireme
