#pragma once

#include <array>
#include <cstdint>

#include "trireme/models/gpt.h"

namespace trireme::bench {

// What `trireme bench step` trains. bench/peers/step_common.py has the same numbers.
struct StepSetting {
  const char* name;
  models::GptOptions model;
  std::int64_t batch;  // sequences of a micro-batch; one micro-batch per rank and step
};

inline const std::array<StepSetting, 2> kStepSettings = {{
    {"communication-bound",
     {.vocabulary = 512, .sequence = 64, .width = 512, .layers = 8, .heads = 8},
     1},
    {"compute-bound",
     {.vocabulary = 512, .sequence = 128, .width = 256, .layers = 4, .heads = 8},
     4},
}};

constexpr int kWarmUpSteps = 5;
constexpr int kTimedSteps = 12;

}  // namespace trireme::bench
