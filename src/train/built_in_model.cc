#include <torch/utils.h>

#include "trireme/core/error.h"
#include "trireme/core/random.h"
#include "trireme/models/convnet.h"
#include "trireme/models/gpt.h"
#include "trireme/models/mlp.h"
#include "trireme/models/wide.h"
#include "trireme/train/task.h"

namespace trireme {
namespace {

constexpr const char* kKindNames[] = {"dense numbers", "tokens", "sparse features"};

void require_kind(const TrainSettings& settings, const SampleShape& shape, SampleKind wanted) {
  TRIREME_CHECK(shape.kind == wanted,
                "model: ",
                settings.model,
                " is trained on ",
                kKindNames[static_cast<int>(wanted)],
                ", found ",
                kKindNames[static_cast<int>(shape.kind)],
                " in ",
                settings.data,
                shape.kind == SampleKind::kTokens   ? ": use --model gpt"
                : shape.kind == SampleKind::kSparse ? ": use --model wide"
                                                    : ": use --model mlp or convnet");
}

// Scores of classes, or one number.
std::int64_t outputs_for(const SampleShape& shape) {
  return shape.classes > 0 ? shape.classes : 1;
}

Trainable make_gpt(const TrainSettings& settings, const SampleShape& shape) {
  models::GptOptions options = models::GptOptions::of_size(settings.size);
  options.vocabulary = shape.classes;
  options.sequence = shape.length - 1;
  options.layers = settings.layers > 0 ? settings.layers : options.layers;
  options.width = settings.width > 0 ? settings.width : options.width;
  options.heads = settings.heads > 0 ? settings.heads : options.heads;
  options.dropout = settings.dropout;
  options.recompute = settings.recompute;
  options.initialisation = models::initialisation_from(settings.initialisation);
  const models::Gpt model(options);
  return {model.ptr(), [model = model.ptr()](const TensorBatch& batch) {
            return model->forward(batch.tokens.slice(1, 0, batch.tokens.size(1) - 1));
          }};
}

Trainable make_mlp(const TrainSettings& settings, const SampleShape& shape) {
  const models::Mlp model(
      models::MlpOptions{.inputs = shape.dense_numel(),
                         .hidden = settings.hidden,
                         .outputs = outputs_for(shape),
                         .dropout = settings.dropout,
                         .recompute = settings.recompute,
                         .initialisation = models::initialisation_from(settings.initialisation)});
  return {model.ptr(),
          [model = model.ptr()](const TensorBatch& batch) { return model->forward(batch.dense); }};
}

Trainable make_convnet(const TrainSettings& settings, const SampleShape& shape) {
  TRIREME_CHECK(shape.dense.size() == 3,
                "model: convnet is trained on images, found samples of ",
                shape.dense_numel(),
                " numbers in ",
                settings.data,
                ": use --model mlp");
  const models::Convnet model(models::ConvnetOptions{
      .channels = shape.dense[0],
      .rows = shape.dense[1],
      .columns = shape.dense[2],
      .stages = settings.stages,
      .hidden = settings.hidden.at(0),
      .outputs = outputs_for(shape),
      .dropout = settings.dropout,
      .recompute = settings.recompute,
      .initialisation = models::initialisation_from(settings.initialisation)});
  return {model.ptr(),
          [model = model.ptr()](const TensorBatch& batch) { return model->forward(batch.dense); }};
}

Trainable make_wide(const TrainSettings& settings, const SampleShape& shape) {
  TRIREME_CHECK(!settings.recompute, "recompute: the model wide has no activations to recompute");
  TRIREME_CHECK(settings.precision == "float32" || settings.precision == "autocast",
                "precision: the model wide has sparse gradients, which are summed in float32 only, "
                "found ",
                settings.precision);
  const models::Wide model(
      models::WideOptions{.features = shape.features,
                          .width = settings.width > 0 ? settings.width : 16,
                          .outputs = outputs_for(shape),
                          .initialisation = models::initialisation_from(settings.initialisation)});
  return {model.ptr(), [model = model.ptr()](const TensorBatch& batch) {
            return model->forward(batch.indices, batch.values, batch.offsets);
          }};
}

}  // namespace

Trainable make_model(const TrainSettings& settings, const SampleShape& shape) {
  torch::manual_seed(mix(settings.seed, 0x77656967687473u));  // "weights"
  if (settings.model == "gpt") {
    require_kind(settings, shape, SampleKind::kTokens);
    return make_gpt(settings, shape);
  }
  if (settings.model == "wide") {
    require_kind(settings, shape, SampleKind::kSparse);
    return make_wide(settings, shape);
  }
  require_kind(settings, shape, SampleKind::kDense);
  return settings.model == "convnet" ? make_convnet(settings, shape) : make_mlp(settings, shape);
}

}  // namespace trireme
