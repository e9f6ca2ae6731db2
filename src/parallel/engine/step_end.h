#pragma once

#include <optional>
#include <string>
#include <vector>

#include "parallel/engine/join.h"
#include "parallel/engine/sharded_optimizer.h"
#include "parallel/gradient/gradient_path.h"
#include "trireme/core/error.h"

namespace trireme::detail {

struct EngineParts;

// The second half of a step: from the last micro-batch to the parameters' next values. All of it is
// collective. Where it throws one of the refusals, the step's gradients are dropped.
class StepEnd {
 public:
  explicit StepEnd(EngineParts& parts) : parts_(parts) {}

  // Takes part in the rounds in which this rank has no micro-batch, and waits for the sums:
  // Phase::kSummed. Nothing more is done where that is so already.
  struct Absence {
    bool joined = false;
    bool given_up = false;
  };
  void sum(const Absence& absence);
  // The same, for a rank that will ask for more before it finishes. One that has given up is at
  // the step's end already, and is asked for nothing: this then refuses.
  void sum_and_ask(const Act& act);
  // The rounds that are left of all of these, whose sums are not waited for.
  static void leave_out_rounds(const std::vector<EngineParts*>& engines, const Absence& absence);
  // The round before this rank's first micro-batch (MicroBatches::rounds_before).
  void leave_out_first_round();
  // Some were left out: the step has no more micro-batches of this rank.
  bool leaves_out() const { return left_out_ > 0; }

  // --- in Phase::kSummed

  const Agreement& agreement() const { return agreement_; }
  void announce(const Act& act);
  // Bounds the norm of the averaged gradient; returns what it was. The ranks of `compared` tell
  // each other their bounds, with what they tell each other anyway.
  double clip(double max_norm, Communicator& compared);
  // The averaged gradient of a parameter, whole; undefined if no rank had one.
  at::Tensor gradient(std::size_t parameter);
  // The update takes this instead: what the rank that leads (Agreement::lead) gives. Those that
  // follow give nothing.
  void set_gradient(std::size_t parameter, const at::Tensor& gradient);
  // Does what the ranks that have data do, and learns their learning rate; false where they drop
  // the step.
  bool follow();
  // Updates the parameters; false where the step is skipped, or nobody had data. `given_up`: why,
  // on the rank that did.
  bool finish(const std::string& given_up = {});
  // Nothing is changed, and the next step begins.
  void drop();
  // The same because the ranks want it, with buffers, which forward has changed, as after a step.
  void abandon();

 private:
  struct Clip {
    double factor = 1;
    bool finite = true;  // the norm was
  };

  GradientTransform transform() const;
  ShardedOptimizer::Gradients gradients() const;
  void check_agreement(const std::string& given_up);
  bool overflows();
  void update(const GradientTransform& scaling, double rate);
  [[noreturn]] void refuse_given_up(const std::string& reason);
  StepGivenUp end_given_up(const std::string& reason);
  void wait_for_sums();
  // One of the rounds in which this rank has no micro-batch; false where none is left.
  bool leave_out_round(const Absence& absence);
  void take_no_part(const Absence& absence, bool last);
  template <class Refusal>
  [[noreturn]] void refuse(const Refusal& refusal) {
    drop();
    throw refusal;
  }
  void forget(StepOutcome outcome);
  const std::string& bad_parameter() const;

  EngineParts& parts_;
  Agreement agreement_;
  std::optional<Clip> clip_;
  std::int64_t first_left_out_ = 0;  // rounds of this step, before this rank's micro-batches
  std::int64_t left_out_ = 0;        // and after them
};

}  // namespace trireme::detail
