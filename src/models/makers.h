#pragma once

#include "trireme/models/gpt.h"
#include "trireme/models/task.h"

// How each built-in model is built from the settings, for samples of a shape; see model_table.cc.

namespace trireme::models {

using Maker = Trainable(const TrainSettings& settings, const SampleShape& shape);
Maker make_bert, make_convnet, make_gpt, make_mlp, make_wide;

// Layers one after the other; with or without the last sum.
ResidualStream run_blocks(std::vector<GptBlock>& blocks, const torch::Tensor& x, bool recomputes);
torch::Tensor sum_of_blocks(std::vector<GptBlock>& blocks, const torch::Tensor& x, bool recomputes);

// Of a transformer.
GptOptions text_options(const TrainSettings& settings, const SampleShape& shape);

// Scores of classes, or one number.
inline std::int64_t outputs_for(const SampleShape& shape) {
  return shape.classes > 0 ? shape.classes : 1;
}

}  // namespace trireme::models
