#include "trireme/shard/micro_batches.h"

#include <algorithm>
#include <numeric>

#include "trireme/core/error.h"

namespace trireme::detail {

MicroBatches MicroBatches::in_turn(std::int64_t total, std::int64_t ranks) {
  std::vector<std::int64_t> dealt;
  dealt.reserve(static_cast<std::size_t>(ranks));
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    dealt.push_back(std::max<std::int64_t>(0, (total - rank + ranks - 1) / ranks));
  }
  return MicroBatches(std::move(dealt));
}

std::int64_t MicroBatches::total() const {
  return std::accumulate(dealt_.begin(), dealt_.end(), std::int64_t{0});
}

std::int64_t MicroBatches::rounds() const {
  return *std::max_element(dealt_.begin(), dealt_.end());
}

std::int64_t MicroBatches::rounds_before(int rank) const {
  return dealt_in_turn() || of(rank) == rounds() ? 0 : 1;
}

std::int64_t MicroBatches::number(int rank, std::int64_t k) const {
  TRIREME_CHECK(k >= 0 && k < of(rank),
                "rank {} computes {} micro-batches in a step, there is no number {}",
                {rank, of(rank), k});
  // Those of the rounds before, then those of ranks before this one in the same round.
  const std::int64_t round = rounds_before(rank) + k;
  std::int64_t number = 0;
  for (int other = 0; other < static_cast<int>(dealt_.size()); ++other) {
    const std::int64_t in_round = round - rounds_before(other);
    number += std::clamp<std::int64_t>(in_round, 0, of(other)) +
              (other < rank && in_round >= 0 && in_round < of(other) ? 1 : 0);
  }
  return number;
}

bool MicroBatches::dealt_in_turn() const {
  bool in_turn = true;
  for (std::size_t rank = 1; rank < dealt_.size(); ++rank) {
    in_turn &= dealt_[rank] <= dealt_[rank - 1] && dealt_[rank] + 1 >= dealt_.front();
  }
  return in_turn;
}

}  // namespace trireme::detail
