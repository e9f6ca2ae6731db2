// What kernels are given, read by the host's compiler and by the GPU's: no header, no type whose
// size depends on the compiler.
#pragma once

namespace trireme::device::cuda {

using Address = unsigned long long;  // in the GPU's memory
using Count = long long;

constexpr int kThreads = 256;  // of every block

// How elements are dealt out to threads: those that are 16 bytes wide together first, then the rest
// one by one, which are those before `head` and those after the last pack. Which thread has an
// element changes nothing in its bits.
constexpr int kMostInPack = 8;
struct Split {
  Count head = 0;
  Count packs = 0;
  Count singles = 0;
};

constexpr int kMostTerms = 64;
constexpr int kMostOutputs = 64;

enum ChainOp : int { kChainSum = 0, kChainAverage = 1, kChainMin = 2, kChainMax = 3 };

// A stretch of a chain (device/sum_chain.h) in which the same terms are present.
struct ChainArguments {
  Split split;
  Address terms[kMostTerms];
  Address outputs[kMostOutputs];
  Address old;                // the outputs' old value where it is the first term, else 0
  unsigned long long begins;  // bit k: term k begins a group
  Count divisor;              // of kChainAverage
  int term_count;
  int output_count;
  int op;
};

struct CopyArguments {
  Split split;
  Address to;  // 0: only looks
  Address from;
  Address not_finite;           // of a word that becomes 1; 0: does not look
  unsigned long long exponent;  // of the elements' type: all its bits set is not finite
};

struct NormArguments {
  Split split;
  Address data;
  Address partial;  // a number, or two, for each block
  Address result;   // where the host sees it
  double coarse, fine;
  double divisor, unscale;
  int scales;
  int blocks;
};

// Rows that are added, grouped by where they go: row targets[u] of the whole gets the values
// order[first[u]], order[first[u] + 1], ... up to first[u + 1].
struct RowArguments {
  Count begin, end;  // elements of the whole that `sums` keeps
  Count width;
  Address sums;
  Address values;
  Address targets, first, order;
  Count unique;
};

constexpr int kProductTile = 64;  // rows and columns of the result that a block has at a time
struct ProductArguments {
  Count rows, columns, depth;
  Address a, b, c;
  int a_transposed, b_transposed;
  double alpha, beta;
};

struct UpdateArguments {
  Split split;
  Address parameter, gradient, result;
  Address states[3];
  Address low;
};

}  // namespace trireme::device::cuda
