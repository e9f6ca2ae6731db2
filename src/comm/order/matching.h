#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "comm/order/operation.h"

namespace trireme::detail {

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

// Throws CommError (kMismatch) when one that `rank` hears in a neighbour_all_gather does not count
// it among those that hear it, or the other way round, or when its output is not as long as what
// they send. Every rank looks after itself. `all` is by rank.
void check_neighbours(std::uint32_t sequence,
                      int rank,
                      std::span<const int> heard,
                      std::span<const CallFacts> all,
                      const NameOf& name);

// A message from rank to rank, as its sender describes it.
struct MessageFacts {
  Dtype dtype;
  std::int64_t numel;
  int tag;
};
// Throws CommError (kMismatch) when `sent` is not what `recv` of rank `rank` expects.
void check_message(int rank, const Operation& recv, const MessageFacts& sent, const NameOf& name);

// Elements of the ranks before `rank`.
std::int64_t sum_before(const std::int64_t* counts, int rank);

}  // namespace trireme::detail
