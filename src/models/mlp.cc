#include "trireme/models/mlp.h"

#include <string>

#include "models/makers.h"
#include "trireme/core/error.h"
#include "trireme/models/recompute.h"

namespace trireme::models {

namespace nn = torch::nn;
using torch::Tensor;

MlpImpl::MlpImpl(const MlpOptions& given) : options(given) {
  TRIREME_CHECK(options.inputs > 0 && options.outputs > 0,
                "an mlp needs inputs and outputs, found {} and {}",
                {options.inputs, options.outputs});
  std::int64_t width = options.inputs;
  for (const std::int64_t next : options.hidden) {
    TRIREME_CHECK(next > 0, "an mlp's hidden layers need a width of at least 1, found ", next);
    layers_.push_back(
        register_module("layer" + std::to_string(layers_.size()), nn::Linear(width, next)));
    width = next;
  }
  layers_.push_back(register_module("head", nn::Linear(width, options.outputs)));
  drop_ = register_module("drop", nn::Dropout(options.dropout));
  initialise(*this, options.initialisation);
}

Tensor MlpImpl::forward(const Tensor& input) {
  Tensor x = input.flatten(1);
  for (std::size_t i = 0; i + 1 < layers_.size(); ++i) {
    nn::LinearImpl* layer = layers_[i].get();
    const auto run = [layer, drop = drop_.get()](const Tensor& in) {
      return drop->forward(torch::relu(layer->forward(in)));
    };
    x = options.recompute ? recompute(layers_[i].ptr(), x, run) : run(x);
  }
  return layers_.back()->forward(x);
}

Trainable make_mlp(const TrainSettings& settings, const SampleShape& shape) {
  const Mlp model(MlpOptions{.inputs = shape.dense_numel(),
                             .hidden = settings.hidden,
                             .outputs = outputs_for(shape),
                             .dropout = settings.dropout,
                             .recompute = settings.recompute,
                             .initialisation = settings.initialisation});
  return {model.ptr(),
          [model = model.ptr()](const TensorBatch& batch) { return model->forward(batch.dense); }};
}

}  // namespace trireme::models
