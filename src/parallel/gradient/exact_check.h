#pragma once

#include <utility>
#include <vector>

#include "parallel/gradient/dense_path.h"
#include "trireme/parallel/engine.h"

namespace trireme::detail {

// Every so many steps (EngineOptions::compress_check), the exact sum of a step's gradients beside
// what compression has made of it: a path and sums of their own, which nothing else reads.
class ExactCheck {
 public:
  ExactCheck(const PartContext& context, RoundRecords& records);

  // The step that is going on is one of them.
  bool due() const;

  // Of a step that is due. Its gradients wait until the round ends: the operations of two paths
  // would otherwise have an order that depends on when gradients come, and so on the rank.
  void add(std::size_t parameter, const at::Tensor& gradient);
  // `tells`: the ranks communicate in it.
  void end_round(const Round& round, bool tells, bool given_up);
  void finish() { path_.finish(); }
  void end_step(StepOutcome outcome) { path_.end_step(outcome); }

  void set_rounds(std::int64_t rounds) { path_.set_rounds(rounds); }
  // Both sums are complete. Collective.
  void compare(const GradientSums& compressed, const std::vector<bool>& used);

  const CompressionUse::Check& last() const { return last_; }

 private:
  const EngineOptions options_;  // without compression
  const PartContext context_;
  const std::int64_t every_;
  GradientSums sums_;
  DensePath path_;
  std::vector<std::pair<std::size_t, at::Tensor>> waiting_;
  CompressionUse::Check last_;
};

}  // namespace trireme::detail
