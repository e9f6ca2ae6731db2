#pragma once

#include <string>
#include <vector>

#include "parallel/model/model_plan.h"
#include "trireme/core/concat.h"
#include "trireme/optim/optimizer.h"
#include "trireme/parallel/options.h"

namespace trireme::detail {

// Throws ConfigError for options that contradict themselves, whatever the model and the ranks.
void check_options(const EngineOptions& options);
// The same for parameters that EngineOptions::round_weights cannot round.
void check_rounded(const std::vector<Parameter>& parameters, const EngineOptions& options);

// All that the result depends on and all ranks must have alike, a line each. A schedule is a
// function: the ranks compare what it gives, in every step.
std::vector<std::string> settings_of(const EngineOptions& options, const Optimizer& optimizer);

// "1, 2, 3", or "none".
template <class Values, class Text = std::identity>
std::string listed_or_none(const Values& values, const Text& text = {}) {
  return values.empty() ? "none" : listed(values, text);
}

// What EngineOptions::offload does not go with. Throws ConfigError.
void check_offload(const ModelPlan& plan, const EngineOptions& options);
// What an engine on a GPU does not have yet. Throws ConfigError.
void check_gpu_options(const ModelPlan& plan,
                       const EngineOptions& options,
                       const Communicator& ranks);
// Throws ConfigError where LibTorch's work on the plan's device, if it is a GPU, would not be in
// the order of this thread's default stream.
void check_stream(const ModelPlan& plan);

}  // namespace trireme::detail
