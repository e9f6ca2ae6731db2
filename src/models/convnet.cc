#include "trireme/models/convnet.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string>

#include <ATen/ops/max_pool2d.h>

#include "models/makers.h"
#include "trireme/core/error.h"
#include "trireme/models/recompute.h"
#include "trireme/settings/model_kinds.h"

namespace trireme::models {

namespace nn = torch::nn;
using torch::Tensor;

ConvnetStageImpl::ConvnetStageImpl(std::int64_t from, std::int64_t to) {
  // No bias: the norm's takes its place.
  convolution_ = register_module("convolution",
                                 nn::Conv2d(nn::Conv2dOptions(from, to, 3).padding(1).bias(false)));
  // Channels last in memory: the convolution's output follows its weights, and LibTorch's norms and
  // pooling then work on vectors of channels, which takes a third off the time of a step.
  // (A copy, since contiguous() leaves a single channel as it is.)
  const Tensor weight = convolution_->weight.detach();
  convolution_->weight.set_data(
      at::empty_like(weight, weight.options(), at::MemoryFormat::ChannelsLast).copy_(weight));
  norm_ = register_module("norm", nn::BatchNorm2d(to));
}

Tensor ConvnetStageImpl::forward(const Tensor& input) {
  // The maximum of ReLUs is the ReLU of the maximum, of which there are four times fewer.
  return torch::relu(at::max_pool2d(norm_->forward(convolution_->forward(input)), {2, 2}));
}

ConvnetImpl::ConvnetImpl(const ConvnetOptions& given) : options(given) {
  std::int64_t channels = options.channels;
  std::int64_t rows = options.rows;
  std::int64_t columns = options.columns;
  for (const std::int64_t next : options.stages) {
    stages_.push_back(
        register_module("stage" + std::to_string(stages_.size()), ConvnetStage(channels, next)));
    channels = next;
    rows /= 2;
    columns /= 2;
  }
  TRIREME_CHECK(channels > 0 && rows > 0 && columns > 0,
                "a convnet of {} stages halves its images that many times: {} x {} is too small",
                {options.stages.size(), options.rows, options.columns});
  drop_ = register_module("drop", nn::Dropout(options.dropout));
  hidden_ = register_module("hidden", nn::Linear(channels * rows * columns, options.hidden));
  head_ = register_module("head", nn::Linear(options.hidden, options.outputs));
  initialise(*this, options.initialisation);
}

Tensor ConvnetImpl::forward(const Tensor& images) {
  Tensor x = images.contiguous(at::MemoryFormat::ChannelsLast);
  for (ConvnetStage& stage : stages_) {
    const auto run = [layer = stage.get()](const Tensor& in) { return layer->forward(in); };
    x = options.recompute ? recompute(stage.ptr(), x, run) : run(x);
  }
  x = drop_->forward(x.flatten(1));
  return head_->forward(drop_->forward(torch::relu(hidden_->forward(x))));
}

Trainable make_convnet(const TrainSettings& settings, const SampleShape& shape) {
  TRIREME_CHECK(shape.dense.size() == 3,
                "model: convnet is trained on images, found samples of ",
                shape.dense_numel(),
                " numbers in ",
                settings.data,
                ": use --model ",
                models_on(SampleKind::kDense, /*images=*/false));
  const auto smaller = static_cast<std::uint64_t>(std::min(shape.dense[1], shape.dense[2]));
  const int most = static_cast<int>(std::bit_width(smaller)) - 1;
  TRIREME_CHECK(static_cast<int>(settings.stages.size()) <= most,
                "stages: expected at most {} for images of {} x {}, which each of them halves, "
                "found {}",
                {most, shape.dense[1], shape.dense[2], settings.stages.size()});
  const Convnet model(ConvnetOptions{.channels = shape.dense[0],
                                     .rows = shape.dense[1],
                                     .columns = shape.dense[2],
                                     .stages = settings.stages,
                                     .hidden = settings.hidden.at(0),
                                     .outputs = outputs_for(shape),
                                     .dropout = settings.dropout,
                                     .recompute = settings.recompute,
                                     .initialisation = settings.initialisation});
  return {model.ptr(),
          [model = model.ptr()](const TensorBatch& batch) { return model->forward(batch.dense); }};
}

}  // namespace trireme::models
