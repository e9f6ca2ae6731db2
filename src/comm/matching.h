#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "trireme/comm/operation.h"

namespace trireme::detail {

// What a rank's peers know of one of its calls.
struct CallFacts {
  OpKind kind = OpKind::kBarrier;
  ReduceOp reduce = ReduceOp::kSum;
  Dtype dtype = Dtype::kFloat32;
  int root = -1;
  std::int64_t total = 0;
  std::int64_t input_numel = 0;
  std::int64_t output_numel = 0;
  const std::int64_t* counts = nullptr;  // null where the rank cannot know them
};

CallFacts facts_of(const Operation& operation);

// The last call of a rank, for messages; put into words only when somebody asks.
struct LastCall {
  std::uint32_t sequence = 0;  // 0: none yet
  CallFacts facts;
  std::string text() const;
};

// "rank 2 (pid 4711)".
using NameOf = std::function<std::string(int rank)>;

// "#17 all_reduce(sum, float32 x 1024)".
std::string describe_facts(std::uint32_t sequence, const CallFacts& facts);

// Throws CommError (kMismatch), naming both ranks and both calls, when `peer` made another call
// than `rank` as operation `sequence` of `size` ranks.
void check_same_call(std::uint32_t sequence,
                     int size,
                     int rank,
                     const CallFacts& mine,
                     int peer,
                     const CallFacts& theirs,
                     const NameOf& name);

// Throws CommError (kMismatch) when the lengths of the ranks' inputs and outputs do not fit each
// other in an operation where no rank alone can know. `all` is by rank.
void check_splits(std::uint32_t sequence, std::span<const CallFacts> all, const NameOf& name);

}  // namespace trireme::detail
