#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "trireme/parallel/engine.h"
#include "trireme/shard/state_view.h"

namespace trireme::detail {

// A round of a step as this rank sees it: a backward pass, or its place where it has none.
struct Round {
  std::int64_t number = 0;  // of those in which the ranks communicate, from 0 in each step
  bool last_of_this_rank = false;
  std::vector<bool> expected;  // by parameter: a gradient can come at all
};

// What became of a step.
enum class StepOutcome {
  kUpdated,
  kDropped,  // overflow, gradients that are not finite, no data: nothing was changed
  kGivenUp,  // the same, and not every gradient was there
};

// A way in which gradients become sums, for the parameters that it is responsible for; what they
// are called and how they are shaped is in the plan (PartContext). All ranks have the same paths
// and call them in the same order.
//
// A path may begin to communicate when a gradient comes, and need not wait before `finish`: in
// between, backward goes on. What it sends belongs to the operations until they are finished.
class GradientPath {
 public:
  GradientPath() = default;
  GradientPath(const GradientPath&) = delete;
  GradientPath& operator=(const GradientPath&) = delete;
  virtual ~GradientPath() = default;

  // Between steps: how many rounds the next ones have. Takes what memory that needs, or throws and
  // leaves everything as it was. Collective.
  virtual void set_rounds(std::int64_t) {}

  virtual void begin_round(const Round& round) = 0;
  // The gradient of a micro-batch; at most one in a round for each parameter. True if it is finite.
  virtual bool add(std::size_t parameter, const at::Tensor& gradient) = 0;
  // After the last of a round: the parameters whose gradient a GPU has found to be not finite since
  // `add`, which does not wait for it.
  virtual std::vector<std::size_t> found_not_finite() { return {}; }
  // What has not come will not come, and where the step is given up, what has come does not count;
  // the ranks still do all that they do together.
  virtual void end_round(bool given_up) = 0;
  // Waits for all rounds: the sums are with their owners (GradientSums). Collective.
  virtual void finish() {}
  // Forgets the step; what is kept for the next one (a residual) is that of a step that updated.
  virtual void end_step(StepOutcome outcome) = 0;

  // What it keeps from step to step: appends tensors, the same on all ranks, and this rank's slices
  // of them. `saved`: each element once over all ranks; otherwise all that this rank holds.
  virtual void describe(StateView&, bool /*saved*/) {}

  // What its compression has done so far; nothing where it has none.
  virtual CompressionUse compression() const { return {}; }
};

}  // namespace trireme::detail
