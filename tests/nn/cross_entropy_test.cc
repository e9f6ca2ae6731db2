// Cross entropy in chunks on the CPU: the graph that GPUs get, with a formula in the kernel's
// place.

#include "trireme/nn/cross_entropy.h"

#include "layer_formulas.h"
#include "nn/by_kernels.h"
#include "trireme/core/error.h"

namespace trireme::nn::cross_entropy_test {
namespace {

using namespace testing;

const torch::TensorOptions kInDouble = torch::dtype(torch::kDouble);

Tensors inputs(std::int64_t rows, std::int64_t words, std::int64_t width) {
  return with_targets(
      {torch::randn({rows, width}, kInDouble), torch::randn({words, width}, kInDouble)}, words);
}

TEST(CrossEntropy, InChunksHasTheGradientsOfItsFormula) {
  torch::manual_seed(1);
  for (const std::int64_t rows : {1, 2, 11}) {
    for (const std::int64_t words : {2, 13, 64, 65}) {
      for (const std::int64_t chunk : {1, 4, 128}) {
        expect_same(
            [&](const Tensors& in) -> Tensors {
              return {linear_cross_entropy_by_kernels(in[0], in[1], in[2], -100, chunk)};
            },
            [](const Tensors& in) { return cross_entropy_formula(in, -100); },
            inputs(rows, words, 5),
            kInDouble,
            1e-12,
            std::to_string(rows) + " of " + std::to_string(words) + " by " + std::to_string(chunk));
      }
    }
  }
}

TEST(CrossEntropy, KeepsNothingForWhatNeedsNoGradient) {
  torch::manual_seed(2);
  const Tensors in = inputs(6, 9, 4);
  const Tensor expected = cross_entropy_formula(in, -100)[0];
  const auto loss = [&](const Tensor& x, const Tensor& weight) {
    return linear_cross_entropy_by_kernels(x, weight, in[2], -100, 4);
  };
  EXPECT_FALSE(loss(in[0], in[1]).requires_grad());
  EXPECT_TRUE(at::allclose(loss(in[0], in[1]), expected));
  const Tensor x = in[0].clone().set_requires_grad(true);
  loss(x, in[1]).backward();
  const Tensor weight = in[1].clone().set_requires_grad(true);
  loss(in[0], weight).backward();
  EXPECT_TRUE(x.grad().defined() && weight.grad().defined());
  {
    const torch::NoGradGuard no_grad;
    EXPECT_TRUE(at::allclose(loss(x, weight), expected));
  }
}

TEST(CrossEntropy, WithoutATargetIsTheMeanOfNoNumbers) {
  const Tensors in = inputs(3, 5, 2);
  const Tensor none = torch::full({3}, 7, torch::kLong);
  EXPECT_TRUE(linear_cross_entropy_by_kernels(in[0], in[1], none, 7, 2).isnan().item<bool>());
  EXPECT_TRUE(linear_cross_entropy(in[0], in[1], none, 7).isnan().item<bool>());
  // It depends on nothing, as LibTorch says.
  const Tensor x = in[0].clone().set_requires_grad(true);
  const Tensor weight = in[1].clone().set_requires_grad(true);
  linear_cross_entropy_by_kernels(x, weight, none, 7, 2).backward();
  EXPECT_TRUE(x.grad().equal(torch::zeros_like(x)));
  EXPECT_TRUE(weight.grad().equal(torch::zeros_like(weight)));
}

TEST(CrossEntropy, OnACpuIsLibTorchs) {
  torch::manual_seed(3);
  const Tensors in = inputs(7, 10, 3);
  const Tensor plain = torch::nn::functional::cross_entropy(at::linear(in[0], in[1]), in[2]);
  EXPECT_TRUE(linear_cross_entropy(in[0], in[1], in[2]).equal(plain));
  const Tensor half =
      linear_cross_entropy(in[0].to(torch::kBFloat16), in[1].to(torch::kBFloat16), in[2]);
  EXPECT_EQ(half.scalar_type(), torch::kFloat);
}

// Never all scores: of GPT-2's vocabulary, a tenth of those of 32 x 1024 tokens or less.
TEST(CrossEntropy, ChunksAreOfABoundedSize) {
  for (const std::int64_t rows : {1, 1000, 32 * 1024, 1 << 20}) {
    for (const std::int64_t words : {1, 256, 50257, 250000}) {
      const std::int64_t chunk = rows_of_chunk(rows, words);
      EXPECT_GE(chunk, 1);
      EXPECT_LE(chunk * words, (std::int64_t{1} << 28) + 128 * words) << rows << " " << words;
      EXPECT_EQ(chunk % 128, 0);
    }
  }
  EXPECT_LE(rows_of_chunk(32 * 1024, 50257), 32 * 1024 / 5);
}

TEST(CrossEntropy, RefusesWhatDoesNotFit) {
  const Tensors in = inputs(4, 6, 3);
  EXPECT_THROW(linear_cross_entropy(in[0], torch::randn({6, 4}), in[2]), ConfigError);
  EXPECT_THROW(linear_cross_entropy(in[0], in[1], in[2].slice(0, 0, 3)), ConfigError);
  EXPECT_THROW(linear_cross_entropy(in[0], in[1], in[2].to(torch::kInt)), ConfigError);
}

}  // namespace
}  // namespace trireme::nn::cross_entropy_test
