#pragma once

#include <functional>
#include <span>
#include <vector>

#include "average/flat_state.h"
#include "average/neighbours.h"
#include "trireme/average/replicas.h"

namespace trireme::detail {

// Who has what of a run of elements inside a replica.
enum class Held {
  kByEach,  // every rank has a run of its own: it is averaged with those of its place
  kByAll,   // all have the same: each averages a part, and they tell each other
};

// What replicas send one another: a run in portions, through memory of its own. Every element's
// terms are added in float64, in the order of the replicas, and the result is rounded once, whoever
// computes it: equal values stay what they are, and no bit depends on how a run is divided.
class Exchange {
 public:
  explicit Exchange(const Replicas& replicas) : replicas_(replicas) {}

  // What becomes of the means of some elements before they are rounded; called for what this rank
  // computes, in the order of shares().
  using Then = std::function<void(std::span<double> means)>;
  void mean(const FlatState& run, Held held, const Then& then = {});
  // Which elements of a run this rank computes the means of.
  std::vector<Range> shares(const FlatState& run, Held held) const;

  void gossip(const FlatState& run, Held held, const Neighbours& neighbours);
  // Replica 0's values on all.
  void take_first(const FlatState& run);

  std::int64_t sent_bytes() const { return sent_bytes_; }

 private:
  struct Portion {
    Range all;   // of the run
    Range mine;  // what this rank averages of it
  };
  std::vector<Portion> portions(const FlatState& run, Held held) const;
  void tell_replica(const FlatState& run, const Portion& portion, const std::byte* mine) const;

  const Replicas& replicas_;
  std::int64_t sent_bytes_ = 0;
};

}  // namespace trireme::detail
