#pragma once

#include <cstdint>
#include <vector>

namespace trireme::detail {

// How a step's micro-batches are dealt to the ranks.
//
// Note [dealing]
// In round k every rank with more than k micro-batches computes one, and the rounds' micro-batches
// are numbered in rank order, one round after the other. The chain over the micro-batches is then
// the sum over the rounds, whoever takes part in which: those who do not are absent terms.
class MicroBatches {
 public:
  MicroBatches() = default;
  // By rank.
  explicit MicroBatches(std::vector<std::int64_t> dealt) : dealt_(std::move(dealt)) {}
  // To the ranks in turn.
  static MicroBatches in_turn(std::int64_t total, std::int64_t ranks);

  std::int64_t of(int rank) const { return dealt_[static_cast<std::size_t>(rank)]; }
  std::int64_t total() const;
  // Of the rank that has most.
  std::int64_t rounds() const;
  // The number in the step of the k-th one of a rank; throws ConfigError where it has none.
  std::int64_t number(int rank, std::int64_t k) const;
  // As in_turn deals them.
  bool dealt_in_turn() const;
  std::size_t ranks() const { return dealt_.size(); }

 private:
  std::vector<std::int64_t> dealt_;
};

}  // namespace trireme::detail
