#pragma once

#include <string>
#include <utility>
#include <vector>

#include "doctor/finding.h"

namespace trireme::detail {

// What ranks measured with each other; row: from, column: to. 0: not measured.
struct PairMatrix {
  PairMatrix() = default;
  explicit PairMatrix(int rank_count)
      : ranks(rank_count),
        latency_us(static_cast<std::size_t>(rank_count) * static_cast<std::size_t>(rank_count)),
        bytes_per_second(latency_us.size()) {}

  std::size_t at(int from, int to) const {
    return static_cast<std::size_t>(from) * static_cast<std::size_t>(ranks) +
           static_cast<std::size_t>(to);
  }

  int ranks = 0;
  std::vector<double> latency_us;  // half of a round trip of eight bytes
  std::vector<double> bytes_per_second;
};

// Which pairs (lower rank first) are worth the time: all of them, or, where there are many ranks,
// those of the first ranks of every machine. `machine_of` has the machine of every rank.
std::vector<std::pair<int, int>> pairs_to_measure(const std::vector<int>& machine_of);

// The pairs (lower rank first) of which a number is more than twice as bad as the median of the
// pairs of their kind: inside a machine, between machines.
std::vector<std::pair<int, int>> slow_pairs(const PairMatrix& pairs,
                                            const std::vector<int>& machine_of);

// Latency and bandwidth, inside machines and between them: the median, and the worst of
// the slow pairs.
std::vector<Finding> judge_pairs(const PairMatrix& pairs, const std::vector<int>& machine_of);

// Both matrices for people; above eight ranks best, median and worst of every pair of machines.
std::string pairs_text(const PairMatrix& pairs, const std::vector<int>& machine_of);

}  // namespace trireme::detail
