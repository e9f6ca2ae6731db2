#pragma once

#include <memory>
#include <vector>

#include "parallel/gradient/exact_check.h"
#include "parallel/gradient/gradient_path.h"
#include "parallel/gradient/round_records.h"
#include "parallel/memory/gradient_sums.h"

namespace trireme::detail {

// The rounds of a step: hands each gradient to the path that is responsible for its parameter, and
// at the end of each round lets the ranks tell each other which gradients there were.
class GradientRounds {
 public:
  // Collective.
  GradientRounds(const PartContext& context, std::int64_t rounds);

  // --- a backward pass, or its place where this rank has none

  // `expected` says, by parameter, whether a gradient can come at all.
  void begin_round(bool last_of_this_rank, std::vector<bool> expected);
  // A parameter's gradient of this micro-batch; called once for each that has one.
  void add(std::size_t parameter, const at::Tensor& gradient);
  // Backward is over; what has not come will not come. The others are told the rest.
  struct RoundEnd {
    bool took_part = false;  // there was a micro-batch
    bool joined = false;     // there is no more data
    bool given_up = false;
    Rate rate{};
  };
  void end_round(const RoundEnd& end);

  // Between steps: how many rounds the next ones have. Collective; may need memory for buckets.
  void set_rounds(std::int64_t rounds);

  // --- the end of a step

  // A rank has given up the step, all of whose rounds have ended here. Waits for what the others
  // tell of the last one, and for nothing that they do together.
  bool given_up() { return records_.agreement().given_up_rank >= 0; }
  // Waits for all rounds. The sums are then with their owners. Collective.
  const Agreement& finish();
  const GradientSums& sums() const { return sums_; }
  // Others in the place of those of a parameter, whose elements of a unit `range` are. Collective.
  void set_sum(std::size_t unit, Range range, const ConstSpan& values) {
    sums_.set(unit, range, values);
  }
  // DDP: makes the sums whole in this rank's memory. Collective.
  void gather_whole() { sums_.gather_whole(); }
  // Forgets the step. Collective.
  void end_step(StepOutcome outcome);

  // What the paths keep from step to step (GradientPath::describe).
  void describe(StateView& view, bool saved);
  CompressionUse compression() const;

 private:
  void make_paths();

  PartContext context_;
  GradientSums sums_;
  RoundRecords records_;
  std::vector<std::unique_ptr<GradientPath>> paths_;
  std::vector<GradientPath*> path_of_;  // by parameter; none of a frozen one
  std::unique_ptr<ExactCheck> check_;   // where it is asked for
  // This step.
  std::vector<GradientState> present_;  // by parameter, in this round
  Round round_;
  bool checked_ = false;  // it is compared with its exact sum
};

}  // namespace trireme::detail
