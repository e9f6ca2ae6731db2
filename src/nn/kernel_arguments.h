// What the kernels of this room are given, read by the host's compiler and by the GPU's: no header,
// no type whose size depends on the compiler.
#pragma once

namespace trireme::nn::kernels {

using Address = unsigned long long;  // in the GPU's memory; 0: none
using Count = long long;

// Layer norm of rows. Where there is a branch, of residual + (branch + bias), which goes to `sum`.
struct NormArguments {
  Count rows;
  Address input;  // the residual, where there is a branch
  Address branch, bias, sum;
  Address weight, offset;
  Address output;
  Address mean, scale;  // float32, one of each row
  float epsilon;
};

struct NormGradientArguments {
  Count rows;
  Address gradient;      // of the output
  Address sum_gradient;  // what comes to the sum from elsewhere; 0: nothing
  Address input;         // what was normalised
  Address weight;
  Address mean, scale;
  Address result;   // the gradient of what was normalised
  Address partial;  // float32 [3, blocks, width]: of weight, offset and bias
};

// GELU (its approximation by tanh) of rows to whose columns a bias is added first.
struct GeluArguments {
  Count rows, width;
  Address input, bias;
  Address output;    // backward: the gradient of the input
  Address gradient;  // of the output; backward alone
  Address partial;   // float32 [blocks in y, width]: of the bias; backward alone
};

// Three gradients of [rows, width] become one of [rows, 3, width], and the sums of its columns.
struct PackArguments {
  Count rows, width;
  Address parts[3];
  Address output;
  Address partial;  // float32 [blocks in y, 3 * width]
};

// Sums over the blocks of partial sums.
struct PartialArguments {
  Count blocks, width;
  Address partial;  // float32 [number of blocks in y, blocks, width]
  Address outputs[3];
};

// Scores become the gradients of the sum of their rows' cross entropies.
struct CrossEntropyArguments {
  Count rows;
  Count words;   // columns that count; those after them become zeros
  Count stride;  // of a row, in elements
  Address scores;
  Address targets;  // int64
  Address losses;   // float32
  Count ignored;    // the target whose row has neither a loss nor a gradient
};

struct ScaleArguments {
  Count numel;
  Address input;
  Address factor;  // one float32
  Address output;
};

}  // namespace trireme::nn::kernels
