#include "parallel/gradient/bucket_order.h"

#include <numeric>

#include "trireme/core/error.h"

namespace trireme::detail {

BucketOrder::BucketOrder(std::size_t buckets) : order_(buckets) {
  std::iota(order_.begin(), order_.end(), std::size_t{0});
}

bool BucketOrder::learn(Communicator& ranks) {
  if (learned_ || ranks.size() == 1) {
    return false;
  }
  std::vector<std::int64_t> order;
  std::vector<bool> known(order_.size(), false);
  const auto append = [&](std::size_t bucket) {
    if (!known[bucket]) {
      known[bucket] = true;
      order.push_back(static_cast<std::int64_t>(bucket));
    }
  };
  for (const std::size_t bucket : filled_) {
    append(bucket);
  }
  for (std::size_t bucket = 0; bucket < order_.size(); ++bucket) {
    append(bucket);  // those that nothing came for
  }
  ranks.broadcast(order, 0).wait();
  // It says where this rank reads and writes, and its bytes may have been altered on the way.
  known.assign(order_.size(), false);
  for (const std::int64_t bucket : order) {
    const auto at = static_cast<std::size_t>(bucket);
    if (at >= known.size() || known[at]) {
      throw CommError(
          CommError::Reason::kMismatch,
          0,
          concat("rank {} expected each of its {} buckets once in the order that rank 0 sent, "
                 "found bucket {}{}: start the same build everywhere; where that is so, something "
                 "alters what the network carries, which --encrypt finds",
                 {ranks.rank(), known.size(), bucket, at < known.size() ? " twice" : ""}));
    }
    known[at] = true;
  }
  order_.assign(order.begin(), order.end());
  learned_ = true;
  return true;
}

std::vector<std::size_t> BucketOrder::positions() const {
  std::vector<std::size_t> positions(order_.size());
  for (std::size_t i = 0; i < order_.size(); ++i) {
    positions[order_[i]] = i;
  }
  return positions;
}

}  // namespace trireme::detail
