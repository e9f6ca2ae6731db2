#include "trireme/models/wide.h"

#include "models/makers.h"
#include "trireme/core/error.h"

namespace trireme::models {

namespace nn = torch::nn;
using torch::Tensor;

WideImpl::WideImpl(const WideOptions& given) : options(given) {
  TRIREME_CHECK(options.features > 0 && options.width > 0 && options.outputs > 0,
                "a wide model needs features, a width and outputs, found {}, {} and {}",
                {options.features, options.width, options.outputs});
  table_ = register_module("table",
                           nn::EmbeddingBag(nn::EmbeddingBagOptions(options.features, options.width)
                                                .mode(torch::kSum)
                                                .sparse(true)
                                                .include_last_offset(true)));
  head_ = register_module("head", nn::Linear(options.width, options.outputs));
  initialise(*this, options.initialisation);
}

Tensor WideImpl::forward(const Tensor& indices, const Tensor& values, const Tensor& offsets) {
  // An embedding bag wants its weights in the type of the table, which an engine may change.
  return head_->forward(table_->forward(indices, offsets, values.to(table_->weight.scalar_type())));
}

Trainable make_wide(const TrainSettings& settings, const SampleShape& shape) {
  TRIREME_CHECK(!settings.recompute, "recompute: the model wide has no activations to recompute");
  const Wide model(WideOptions{.features = shape.features,
                               .width = settings.width > 0 ? settings.width : 16,
                               .outputs = outputs_for(shape),
                               .initialisation = settings.initialisation});
  return {model.ptr(), [model = model.ptr()](const TensorBatch& batch) {
            return model->forward(batch.indices, batch.values, batch.offsets);
          }};
}

}  // namespace trireme::models
