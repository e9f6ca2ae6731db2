#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "trireme/comm/communicator.h"

namespace trireme::detail {

// A learning rate: what the schedule makes of the base.
struct Rate {
  double base = 0;
  double factor = 1;

  double value() const { return base * factor; }
};

// What all ranks know when a step's gradients have been summed.
struct Agreement {
  std::vector<bool> used;          // by parameter: somebody had a gradient for it
  std::int64_t micro_batches = 0;  // that took part
  bool all_joined = false;         // no rank has data left
  bool any_joined = false;         // some have none
  int lead = 0;                    // the first rank that has
  int given_up_rank = -1;          // the first rank that gave the step up; -1: none
  // The first rank with another learning rate than the lead, and both; -1: none. Ranks that have
  // joined take the lead's base, but the schedule is their own.
  int other_rate_rank = -1;
  double other_rate = 0;
  double lead_rate = 0;
  // The first gradient that is not finite; -1: all are.
  int bad_rank = -1;
  std::size_t bad_parameter = 0;
};

// What became of a parameter's gradient in a micro-batch. A later one counts for the whole round.
enum class GradientState : std::uint8_t { kAbsent = 0, kPresent = 1, kNotFinite = 2 };

// What the ranks tell each other after each round of a step: how many micro-batches they had, who
// has no data left or gives up, and which gradients there were.
class RoundRecords {
 public:
  RoundRecords(std::size_t parameters, Communicator& ranks);
  RoundRecords(const RoundRecords&) = delete;
  RoundRecords& operator=(const RoundRecords&) = delete;
  ~RoundRecords() { telling_.forget(); }

  // --- this rank's own, of the rounds since it last told

  void note(const std::vector<GradientState>& gradients);
  void count_micro_batch();
  void forget_own();

  // Tells the others, and hears from them. Collective; the answers come with `hear`.
  void tell(bool joined, bool given_up, const Rate& rate);
  // Waits for what was told last, if it was not heard yet. Before this rank's own is changed: they
  // are in the same memory.
  void hear();

  // By parameter: the sums hold something, of the rounds since begin_sums(). Waits for the last.
  const std::vector<char>& in_sums();
  // The sums begin with nothing in them.
  void begin_sums();
  // Of all rounds so far. Waits for the last.
  const Agreement& agreement();
  // For the next step.
  void reset();

 private:
  Communicator& ranks_;
  // Kept by the operation that is on its way, which may outlive this.
  std::shared_ptr<std::vector<std::uint8_t>> own_;
  std::shared_ptr<std::vector<std::uint8_t>> all_;  // by rank
  Work telling_;
  bool pending_ = false;
  std::vector<char> in_sums_;
  Agreement agreement_;
};

}  // namespace trireme::detail
