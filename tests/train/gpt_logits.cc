// What models::Gpt makes of tokens, for gpt2_reference_test.py:
//   gpt_logits make tied|untied WEIGHTS TOKENS LOGITS   writes random weights, and the logits
//   gpt_logits read tied|untied WEIGHTS TOKENS LOGITS   reads weights; WEIGHTS.pt by torch::load
// LOGITS holds them as computed in float32 and in float64.

#include <cstdio>
#include <exception>
#include <string>

#include <torch/serialize.h>

#include "support/torch.h"
#include "trireme/checkpoint/safetensors.h"
#include "trireme/models/gpt.h"
#include "trireme/tensor/span.h"
#include "trireme/train/weights.h"

namespace {

using trireme::models::Gpt;

Gpt make_gpt(bool tied) {
  trireme::models::GptOptions options;
  options.vocabulary = 61;
  options.sequence = 24;
  options.width = 48;
  options.layers = 3;
  options.heads = 4;
  options.tied = tied;
  return Gpt(options);
}

torch::Tensor tokens_in(const std::string& path) {
  const trireme::SafetensorsFile file(path);
  const trireme::ConstSpan values = file.tensor("tokens");
  return torch::from_blob(const_cast<std::byte*>(values.bytes()),
                          file.entries().at(0).shape,
                          torch::TensorOptions().dtype(torch::kInt64))
      .clone();
}

void run(bool make,
         bool tied,
         const std::string& weights,
         const std::string& tokens_path,
         const std::string& out) {
  torch::manual_seed(11);
  const torch::NoGradGuard no_grad;
  Gpt gpt = make_gpt(tied);
  if (make) {
    for (auto& parameter : gpt->parameters()) {
      parameter.normal_(0, 0.3);  // norms and biases, too: nothing may be left out unseen
    }
    trireme::save_weights(weights, *gpt);
  } else if (weights.ends_with(".pt")) {
    torch::load(gpt, weights);
  } else {
    trireme::load_weights(weights, *gpt);
  }
  gpt->eval();
  const torch::Tensor tokens = tokens_in(tokens_path);
  const torch::Tensor single = gpt->forward(tokens).contiguous();
  gpt->to(torch::kDouble);
  const torch::Tensor wide = gpt->forward(tokens).contiguous();
  trireme::SafetensorsWriter writer(out,
                                    {{"float32", trireme::Dtype::kFloat32, single.sizes().vec()},
                                     {"float64", trireme::Dtype::kFloat64, wide.sizes().vec()}});
  writer.write(single);
  writer.write(wide);
  writer.finish();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) {
    std::fprintf(stderr, "gpt_logits make|read tied|untied WEIGHTS TOKENS LOGITS\n");
    return 2;
  }
  try {
    run(std::string(argv[1]) == "make", std::string(argv[2]) == "tied", argv[3], argv[4], argv[5]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpt_logits: %s\n", error.what());
    return 1;
  }
  return 0;
}
