#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "support/torch.h"
#include "trireme/optim/optimizer.h"
#include "trireme/parallel/engine.h"

// What the parity tests train: small models with everything that is awkward about real ones.

namespace trireme::testing {

// A model with a loss on micro-batch `micro_batch` of step `step`, which depends on nothing else.
class TestModel : public torch::nn::Module {
 public:
  virtual torch::Tensor loss(std::int64_t step, std::int64_t micro_batch) = 0;
};

// Random numbers that belong to a micro-batch, not to a rank.
torch::Tensor sample(std::int64_t step,
                     std::int64_t micro_batch,
                     std::int64_t which,
                     at::IntArrayRef sizes);

std::shared_ptr<TestModel> make_odd_layers();       // 7x15, 15x13, 443 elements, which is a prime
std::shared_ptr<TestModel> make_tied_and_unused();  // tied, never used, used sometimes, frozen
std::shared_ptr<TestModel> make_convolutions();     // channels_last, norms without affine
std::shared_ptr<TestModel> make_attention();        // a transformer block with embeddings
std::shared_ptr<TestModel> make_tiny();             // units smaller than the world
std::shared_ptr<TestModel> make_broad();            // so large that LibTorch uses several threads

constexpr std::int64_t kMicroBatches = 12;
constexpr std::int64_t kSteps = 20;

struct Case {
  std::string name;
  std::function<std::shared_ptr<TestModel>()> model;
  std::function<std::unique_ptr<Optimizer>()> optimizer;
  double clip_norm = 0;
  EngineOptions
      options{};  // bucket sizes, splits, ...; stage and micro-batches are set by the test
  bool autocast = false;
  bool uneven_shares = false;  // EngineOptions::shares of the ranks differ
  std::int64_t steps = kSteps;
};

// Of so few steps that all worlds can have their turn, or of TRIREME_TEST_STEPS.
std::vector<Case> float32_cases();
// Of kSteps: a loss scale may begin with nine steps that overflow.
std::vector<Case> half_cases();

// All parameters and their moving averages, flat, and the norms that were seen, as bytes: what must
// be equal.
using Result = std::vector<char>;

// One plain process that walks through the micro-batches: LibTorch's autograd, a chain of
// additions, one division, the update rule on whole tensors. Knows nothing of the engine.
Result train_plainly(const Case& item);

// The engine.
Result train_with_engine(const Case& item, EngineOptions options, std::shared_ptr<World> world);

}  // namespace trireme::testing
