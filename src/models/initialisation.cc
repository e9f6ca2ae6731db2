#include "trireme/models/initialisation.h"

#include <cmath>

#include <torch/nn/init.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "trireme/core/error.h"

namespace trireme::models {
namespace {

namespace nn = torch::nn;
using torch::Tensor;

// What the last part of a module's name says: "block3.out" ends a residual branch.
bool ends_branch(const std::string& name) {
  const std::string last = name.substr(name.rfind('.') + 1);
  return last == "out" || last == "down";
}

void set_weight(const Tensor& weight, Initialisation how, bool embedding, double narrowing) {
  switch (how) {
    case Initialisation::kAutomatic:
    case Initialisation::kTorch:
      break;
    case Initialisation::kHe:
      if (embedding) {
        nn::init::normal_(weight, 0, 1);  // one input at a time: its variance is that of the output
      } else {
        nn::init::kaiming_normal_(weight, 0, torch::kFanIn, torch::kReLU);
      }
      break;
    case Initialisation::kXavier:
      nn::init::xavier_uniform_(weight);
      break;
    case Initialisation::kGpt2:
      nn::init::normal_(weight, 0, 0.02 * narrowing);
      break;
  }
}

}  // namespace

void initialise(nn::Module& model, Initialisation how, std::int64_t layers) {
  TRIREME_CHECK(how != Initialisation::kAutomatic,
                "initialisation: expected torch, he, xavier or gpt2, found auto, for which "
                "resolve() puts in the model's default");
  if (how == Initialisation::kTorch) {
    return;
  }
  const torch::NoGradGuard no_grad;
  const double narrow = 1 / std::sqrt(2.0 * static_cast<double>(layers));
  for (const auto& item : model.named_modules("", /*include_self=*/false)) {
    nn::Module* module = item.value().get();
    const double narrowing = ends_branch(item.key()) ? narrow : 1;
    Tensor bias;
    if (auto* linear = module->as<nn::LinearImpl>()) {
      set_weight(linear->weight, how, false, narrowing);
      bias = linear->bias;
    } else if (auto* convolution = module->as<nn::Conv2dImpl>()) {
      set_weight(convolution->weight, how, false, 1);
      bias = convolution->bias;
    } else if (auto* embedding = module->as<nn::EmbeddingImpl>()) {
      set_weight(embedding->weight, how, true, 1);
    } else if (auto* bag = module->as<nn::EmbeddingBagImpl>()) {
      set_weight(bag->weight, how, true, 1);
    }
    if (bias.defined()) {
      bias.zero_();
    }
  }
}

}  // namespace trireme::models
