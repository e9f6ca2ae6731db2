// Scores in more columns than there are words: what a loss makes of them is what it makes of a
// plain product's.

#include "nn/word_scores.h"

#include <gtest/gtest.h>

#include <ATen/ops/linear.h>
#include <torch/nn/functional/loss.h>
#include <torch/types.h>
#include <torch/utils.h>

namespace trireme::nn::word_scores_test {
namespace {

using torch::Tensor;

constexpr std::int64_t kWords = 13;
constexpr std::int64_t kWidth = 6;

struct Learned {
  Tensor loss, of_x, of_weight;
};

// Whole numbers, so that products are exact whatever their order is.
Learned learned(const std::function<Tensor(const Tensor&, const Tensor&)>& scores) {
  torch::manual_seed(3);
  const Tensor x = torch::randint(-3, 4, {2, 5, kWidth}, at::kDouble).requires_grad_();
  const Tensor weight = torch::randint(-3, 4, {kWords, kWidth}, at::kDouble).requires_grad_();
  const Tensor words = torch::randint(0, kWords, {10}, at::kLong);
  const Tensor loss = torch::nn::functional::cross_entropy(scores(x, weight).flatten(0, 1), words);
  loss.backward();
  return {loss.detach(), x.grad(), weight.grad()};
}

TEST(WordScores, PaddingChangesNeitherTheLossNorItsGradients) {
  const Learned plain =
      learned([](const Tensor& x, const Tensor& weight) { return at::linear(x, weight); });
  const Learned padded = learned([](const Tensor& x, const Tensor& weight) {
    const Tensor scores = word_scores_padded_to(8, x, weight);
    EXPECT_EQ(scores.sizes(), at::IntArrayRef({2, 5, 16}));
    EXPECT_TRUE(scores.slice(-1, kWords).isneginf().all().item<bool>());
    EXPECT_TRUE(scores.slice(-1, 0, kWords).equal(at::linear(x, weight)));
    return scores;
  });
  // Sums of 13 and of 16 exponentials are rounded in another order.
  EXPECT_TRUE(at::allclose(padded.loss, plain.loss, 1e-14, 0));
  EXPECT_TRUE(at::allclose(padded.of_x, plain.of_x, 1e-13, 1e-15));
  EXPECT_TRUE(at::allclose(padded.of_weight, plain.of_weight, 1e-13, 1e-15));
  EXPECT_EQ(padded.of_weight.sizes(), at::IntArrayRef({kWords, kWidth}));
}

// A number that is none of the words is refused, though there is a column for it.
TEST(WordScores, ATargetIsNoneOfTheColumnsThatWereAdded) {
  const Tensor scores = word_scores_padded_to(8, torch::randn({3, 4}), torch::randn({13, 4}));
  const Tensor good = torch::tensor({0, 12, -100});
  EXPECT_TRUE(targets_in(scores, 13, good, -100).equal(good));
  const auto loss = [&](std::int64_t word) {
    return torch::nn::functional::cross_entropy(
        scores, targets_in(scores, 13, torch::tensor({word, word, word}), -100));
  };
  EXPECT_TRUE(loss(12).isfinite().item<bool>());
  EXPECT_THROW(loss(13), c10::Error);
  EXPECT_THROW(loss(15), c10::Error);
}

TEST(WordScores, NothingIsPaddedOnTheCpuOrWhereTheColumnsFit) {
  const Tensor x = torch::randn({4, kWidth}, at::kBFloat16);
  const Tensor weight = torch::randn({kWords, kWidth}, at::kBFloat16);
  EXPECT_TRUE(padded_word_scores(x, weight).equal(at::linear(x, weight)));
  EXPECT_TRUE(word_scores(x, weight).equal(at::linear(x, weight)));
  EXPECT_EQ(word_scores_padded_to(13, x, weight).size(1), kWords);
}

}  // namespace
}  // namespace trireme::nn::word_scores_test
