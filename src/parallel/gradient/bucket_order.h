#pragma once

#include <cstddef>
#include <vector>

#include "trireme/comm/communicator.h"

namespace trireme::detail {

// The order in which buckets are launched, the same on all ranks, because collectives are. At first
// it is the plan's; from the first whole step on, the one in which rank 0 filled them.
class BucketOrder {
 public:
  explicit BucketOrder(std::size_t buckets);

  std::size_t size() const { return order_.size(); }
  std::size_t operator[](std::size_t position) const { return order_[position]; }
  bool learned() const { return learned_; }

  // All that this rank expected of a bucket has come.
  void filled(std::size_t bucket) { filled_.push_back(bucket); }
  // At the end of a whole step. True where the order is a new one. Collective.
  bool learn(Communicator& ranks);
  // At the end of any step.
  void forget_filled() { filled_.clear(); }
  // By bucket: where in the order it is.
  std::vector<std::size_t> positions() const;

 private:
  std::vector<std::size_t> order_;
  std::vector<std::size_t> filled_;
  bool learned_ = false;
};

}  // namespace trireme::detail
