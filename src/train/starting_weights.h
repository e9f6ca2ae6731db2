#pragma once

#include <functional>
#include <string>

#include <torch/nn/module.h>

#include "trireme/settings/train_settings.h"

namespace trireme::detail {

// Sets a model's parameters and buffers from settings.weights_from, before an engine takes them;
// other floating-point types are converted. Throws ConfigError with all that is missing, left over
// or of another shape, unless settings.weights_partial; it is then said.
void begin_with_weights(const TrainSettings& settings,
                        torch::nn::Module& module,
                        const std::function<void(const std::string& text)>& say);

}  // namespace trireme::detail
