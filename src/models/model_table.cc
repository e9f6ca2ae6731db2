// The built-in models. What is known of each without LibTorch is in settings/model_kinds.cc.

#include <torch/utils.h>

#include "models/makers.h"
#include "trireme/core/error.h"
#include "trireme/core/random.h"
#include "trireme/settings/model_kinds.h"

namespace trireme {
namespace {

constexpr std::pair<const char*, models::Maker*> kMakers[] = {
    {"gpt", models::make_gpt},
    {"bert", models::make_bert},
    {"mlp", models::make_mlp},
    {"convnet", models::make_convnet},
    {"wide", models::make_wide},
};

// By SampleKind.
constexpr const char* kSamples[] = {"dense numbers", "tokens", "sparse features"};

}  // namespace

Trainable make_model(const TrainSettings& settings, const SampleShape& shape) {
  for (const auto& [name, make] : kMakers) {
    if (settings.model != name) {
      continue;
    }
    const SampleKind wanted = model_kind(name).samples;
    TRIREME_CHECK(shape.kind == wanted,
                  "model: {} is trained on {}, found {} in {}: use --model {}",
                  {name,
                   kSamples[static_cast<int>(wanted)],
                   kSamples[static_cast<int>(shape.kind)],
                   settings.data,
                   models_on(shape.kind)});
    torch::manual_seed(mix(settings.seed, 0x77656967687473u));  // "weights"
    return make(settings, shape);
  }
  throw ConfigError(detail::concat(
      "model: expected a built-in one, found \"", settings.model, "\": build your own yourself"));
}

}  // namespace trireme
