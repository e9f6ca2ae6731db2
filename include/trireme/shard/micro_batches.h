#pragma once

#include <cstdint>
#include <vector>

namespace trireme::detail {

// How a step's micro-batches are dealt to the ranks.
//
// Note [dealing]
// In a round every rank computes one micro-batch or none, and the rounds' micro-batches are
// numbered in rank order, one round after the other. The chain over the micro-batches is then the
// sum over the rounds, whoever takes part in which: those who do not are absent terms.
//
// A rank that was dealt fewer because it is slow leaves out the first round rather than a later
// one: it is still busy with its first micro-batch when the others have done two, and those would
// wait for it, since ranks tell of a round when they have heard of the one before.
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
  // Before a rank's first one: 0 or 1.
  std::int64_t rounds_before(int rank) const;
  // The number in the step of the k-th one of a rank; throws ConfigError where it has none.
  std::int64_t number(int rank, std::int64_t k) const;
  // As in_turn deals them.
  bool dealt_in_turn() const;
  std::size_t ranks() const { return dealt_.size(); }

 private:
  std::vector<std::int64_t> dealt_;
};

}  // namespace trireme::detail
