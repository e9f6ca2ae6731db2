#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "trireme/checkpoint/tensor_source.h"

// Hugging Face's GPT-2 and models::Gpt are the same function: q, k and v from one matrix, layer
// norms before each branch and at the end, gelu by tanh, an epsilon of 1e-5, biases everywhere but
// in the head. They differ in names, and in that Hugging Face keeps the matrices of its layers
// transposed ([in, out]).

namespace trireme {

// What follows from a gpt's tensors; its heads do not.
struct GptSizes {
  std::int64_t vocabulary = 0;
  std::int64_t sequence = 0;
  std::int64_t width = 0;
  std::int64_t layers = 0;
  bool tied = false;  // no head of its own: scores are products with the embeddings
};

// A gpt of ours under the names of Hugging Face's GPT2LMHeadModel. Throws ConfigError with
// everything that does not belong to a gpt, is missing or has another shape.
std::unique_ptr<TensorSource> as_gpt2(std::unique_ptr<TensorSource> ours);
// Of a source with our names.
GptSizes gpt_sizes(const TensorSource& ours);

// The way back, for names with and without "transformer." in front. The masks that old files hold
// (attn.bias, attn.masked_bias) are left out, and a head that equals the embeddings bit by bit:
// such a gpt is tied. `untied`: it gets a head of its own all the same, a copy. Throws like
// as_gpt2.
std::unique_ptr<TensorSource> from_gpt2(std::unique_ptr<TensorSource> theirs, bool untied = false);
// Opens such a file, whatever the type of its masks.
std::unique_ptr<TensorSource> weights_of_gpt2_file(const std::string& file);
// Whether it has the names of Hugging Face's GPT-2.
bool has_gpt2_names(const TensorSource& source);

// The config.json that stands beside the weights in a folder of Hugging Face.
std::string gpt2_config(const GptSizes& sizes, std::int64_t heads);

}  // namespace trireme
