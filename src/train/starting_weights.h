#pragma once

#include <functional>
#include <string>

#include <torch/nn/module.h>

#include "trireme/parallel/resumable.h"
#include "trireme/settings/train_settings.h"

namespace trireme::detail {

// Sets the parameters and buffers of the engine's module from settings.weights_from, wherever the
// engine keeps them; other floating-point types are converted. Throws ConfigError with all that is
// missing, left over or of another shape, unless settings.weights_partial; it is then said.
// Collective.
void begin_with_weights(const TrainSettings& settings,
                        const torch::nn::Module& module,
                        Resumable& engine,
                        const std::function<void(const std::string& text)>& say);

}  // namespace trireme::detail
