#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace trireme::nn {

// Attention of queries, keys and values that lie side by side, as one linear layer makes them:
// [batch, length, 3 * width] to [batch, length, width]; each of the three is `heads` parts of
// width / heads. Causal: a place sees itself and those before it.
//
// Products and softmax are LibTorch's: its flash attention (the forward is cuDNN's on compute
// capability 9.0), called with the strides that things have; the three gradients become one in a
// pass that also adds up the bias' gradient. That is for 16-bit elements, parts of up to 128 in
// multiples of 8, GPUs of compute capability 8.0 and newer, and where LibTorch's settings allow
// flash attention. Else it is at::scaled_dot_product_attention.
at::Tensor attention(const at::Tensor& qkv, std::int64_t heads, bool causal);
inline at::Tensor causal_attention(const at::Tensor& qkv, std::int64_t heads) {
  return attention(qkv, heads, /*causal=*/true);
}

// attention(linear(x, weight, bias), heads, causal); weight [3 * width, columns of x].
at::Tensor self_attention(const at::Tensor& x,
                          const at::Tensor& weight,
                          const at::Tensor& bias,
                          std::int64_t heads,
                          bool causal);

}  // namespace trireme::nn
