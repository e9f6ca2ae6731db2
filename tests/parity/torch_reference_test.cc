// A reference that nobody here wrote: PyTorch DDP trains the same GPT from the same weights on the
// same batches, and the loss curves agree.

#include <fstream>

#include <gtest/gtest.h>

#include "support/processes.h"
#include "support/ranks.h"
#include "support/torch.h"
#include "trireme/core/environment.h"
#include "trireme/models/gpt.h"
#include "trireme/parallel/engine.h"

namespace trireme::torch_reference_test {
namespace {

constexpr int kSteps = 50;
constexpr std::int64_t kVocabulary = 61;
constexpr std::int64_t kSequence = 16;
constexpr std::int64_t kBatch = 2;

// As torch_reference.py has it.
torch::Tensor text_of(std::int64_t step, std::int64_t rank) {
  const auto column = torch::arange(kSequence + 1, torch::kLong).view({1, -1});
  const auto row = torch::arange(kBatch, torch::kLong).view({-1, 1});
  return (column * 3 + row * 23 + (step * 5 + rank * 11)).remainder(kVocabulary);
}

TEST(TorchReference, PyTorchDdpHasTheSameLossCurve) {
  const auto python = env_string("TRIREME_TORCH_PYTHON");
  ASSERT_TRUE(python) << "no Python on this machine has torch: run scripts/setup";
  const testing::TemporaryFolder folder;
  const auto reference =
      testing::run_program({*python, TRIREME_PARITY_SOURCE "/torch_reference.py", folder.path()});
  ASSERT_EQ(reference.code, 0) << reference.err;
  std::vector<double> expected;
  std::ifstream losses(folder.path() + "/losses");
  for (double loss = 0; losses >> loss;) {
    expected.push_back(loss);
  }
  ASSERT_EQ(expected.size(), 2U * kSteps);
  EXPECT_LT(expected[2 * kSteps - 2], expected[0] - 0.3) << "the reference does not learn";

  testing::fork_ranks(2, [&, job = testing::unique_job()](int rank) {
    at::set_num_threads(1);
    const auto world = init(testing::options_for(job, rank, 2));
    for (const int zero : {0, 1, 2, 3}) {
      models::Gpt model(models::GptOptions{
          .vocabulary = kVocabulary, .sequence = kSequence, .width = 48, .layers = 3, .heads = 4});
      std::ifstream weights(folder.path() + "/weights", std::ios::binary);
      for (const auto& parameter : model->parameters()) {
        weights.read(static_cast<char*>(parameter.data_ptr()),
                     static_cast<std::streamsize>(parameter.nbytes()));
      }
      ASSERT_TRUE(weights) << "the models have different sizes";
      ASSERT_EQ(weights.peek(), std::ifstream::traits_type::eof());
      Engine engine(model, AdamW({.lr = 1e-3, .weight_decay = 1e-2}), {.zero = zero}, world);
      for (int step = 0; step < kSteps; ++step) {
        const auto loss = model->loss(text_of(step, rank));
        EXPECT_NEAR(loss.item<double>(), expected[static_cast<std::size_t>(2 * step + rank)], 1e-4)
            << "step " << step << " stage " << zero;
        engine.backward(loss);
        engine.step();
      }
    }
  });
}

}  // namespace
}  // namespace trireme::torch_reference_test
