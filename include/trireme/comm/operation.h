#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/core/span.h"
#include "trireme/shard/range.h"

namespace trireme {

// How reductions combine the ranks' elements, always as one chain in rank order,
// ((x[0] + x[1]) + x[2]) + ..., so that the bits depend on nothing but the inputs. 16-bit floats
// combine in float32 and round once. Integer sums wrap; NaN wins every minimum and maximum.
enum class ReduceOp : std::uint8_t {
  kSum = 0,
  kAverage = 1,  // the sum, then one true division; integers divide in 64 bits and truncate
  kMin = 2,
  kMax = 3,
};

// Values are part of the shared-memory format.
enum class OpKind : std::uint8_t {
  kBarrier = 0,
  kAllReduce = 1,
  kReduceScatter = 2,
  kAllGather = 3,
  kBroadcast = 4,
  kReduce = 5,
  kGather = 6,
  kScatter = 7,
  kAllToAll = 8,
  kSend = 9,
  kRecv = 10,
  kAllocate = 11,
};

std::string_view op_name(OpKind kind);
std::string_view reduce_name(ReduceOp op);
bool reduces(OpKind kind);
bool has_root(OpKind kind);

// Of SumTerms in one call.
inline constexpr std::size_t kMaxAbsentRanges = 1000;

// What besides the ranks' inputs decides the chain of a sum. Ranges are elements of the whole
// input, ascending and disjoint.
struct SumTerms {
  // What this rank leaves out: the chain continues with the next rank, nothing is added in its
  // place (+0.0 would change the sign of a -0.0). If every rank leaves an element out and nothing
  // was accumulated, reduce_scatter keeps what the output had; all_reduce leaves it undefined.
  std::vector<Range> absent{};
  // reduce_scatter: the output's old value is the first term of the chain ...
  bool accumulate = false;
  // ... except in these ranges, where it holds nothing yet.
  std::vector<Range> fresh{};
  // Ranks whose terms are added up first, then the sums of these groups; the same on all ranks. 0:
  // the communicator's (InitOptions::sum_group).
  int group = 0;
};

// One call as one rank made it, already checked by `Communicator`: what a backend carries out.
struct Operation {
  OpKind kind = OpKind::kBarrier;
  ReduceOp reduce = ReduceOp::kSum;
  Dtype dtype = Dtype::kFloat32;
  int root = -1;      // of rooted collectives
  int peer = -1;      // of send and recv
  int tag = 0;        // of send and recv
  ConstSpan input{};  // what this rank contributes; empty where it contributes nothing
  Span output{};      // what this rank receives; empty where it receives nothing

  // Elements per rank: the split that reduce_scatter, all_gather, gather and scatter agree on (the
  // same on all ranks), or what this rank sends to each (all_to_all). Empty on a rank that cannot
  // know it: the non-roots of a gather or scatter without explicit counts.
  std::vector<std::int64_t> counts{};
  SumTerms terms{};
  std::int64_t total = 0;  // elements of the whole operation; of an allocation, its bytes
};

// "all_reduce(sum, float32 x 1024)"; for messages.
std::string describe(OpKind kind, ReduceOp reduce, Dtype dtype, std::int64_t total, int root);

}  // namespace trireme
