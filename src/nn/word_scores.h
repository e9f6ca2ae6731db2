#pragma once

#include <torch/types.h>

// Scores of the words of a vocabulary: products with a row of weights for each word.

namespace trireme::nn {

// [..., width] and [words, width] to [..., words].
torch::Tensor word_scores(const torch::Tensor& x, const torch::Tensor& weight);

// The same with as many more columns as the device's products want; those are minus infinity, which
// a softmax does not see, and through which no gradient comes.
//
// A GPU's fast products in 16 bits need rows that begin at multiples of 16 bytes. A vocabulary is
// whatever it is (GPT-2's is odd): without the columns, its three products take five times as long,
// and with them half of the time of a step. The softmax wants all columns that there are: leaving
// some out would copy the scores, the largest tensor of a training.
torch::Tensor padded_word_scores(const torch::Tensor& x, const torch::Tensor& weight);

// Targets for such scores of so many words: one that is no word is none of the other columns
// either, but one that LibTorch refuses.
torch::Tensor targets_in(const torch::Tensor& scores,
                         std::int64_t words,
                         const torch::Tensor& targets,
                         std::int64_t ignored);

// The same for any device: columns are padded to a multiple of this number.
torch::Tensor word_scores_padded_to(std::int64_t multiple,
                                    const torch::Tensor& x,
                                    const torch::Tensor& weight);

}  // namespace trireme::nn
