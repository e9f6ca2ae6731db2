#pragma once

#include <vector>

#include "parallel/gradient/chain_sum.h"
#include "parallel/gradient/factor_plan.h"
#include "parallel/gradient/gradient_path.h"
#include "parallel/gradient/residuals.h"
#include "parallel/memory/gradient_sums.h"

namespace trireme::detail {

// Sums dense gradients as factors of a small rank (PowerSGD; Compressor::Format::rank).
//
// Note [factors of a sum]
// With M_m the gradient of micro-batch m and what was left out of it before, and Q the factor of
// the step before: P = sum of M_m Q, made orthonormal; Q = sum of Q_m with Q_m = M_m' P; the sum of
// the M_m is taken to be P Q', and M_m - P Q_m' is left out. Both sums are added up in the order of
// the micro-batches (ChainSum), every product has one order (device::Product), and all ranks
// compute the rest alike: so the bits depend neither on the stage nor on how many ranks there are.
// What is not a matrix, or not larger than its factors, is added up exactly, along with P.
//
// The second sum needs the first, and every M_m once more: they stay where what is left out of them
// goes (Residuals).
class LowRankPath final : public GradientPath {
 public:
  LowRankPath(const PartContext& context, GradientSums& sums);

  void begin_round(const Round& round) override { round_ = round; }
  bool add(std::size_t parameter, const at::Tensor& gradient) override;
  void end_round(bool given_up) override;
  void finish() override;
  void end_step(StepOutcome outcome) override;
  void describe(StateView& view, bool saved) override;
  CompressionUse compression() const override;

 private:
  using Term = FactorPlan::Term;

  // What has been left out of a matrix, and what is left: in between, the matrix itself.
  Carry carry_of(std::int64_t round, const Term& term);
  // Ranges of terms that a round has nothing for.
  std::vector<Range> absent(const std::vector<char>& present, Range Term::*range) const;
  // What exact sums would have sent, of a round or of what every rank gets at the end.
  void count_exact_bytes(bool at_end);
  // M_m' P of this rank's micro-batch of a round, and what it leaves out.
  void add_second(std::int64_t round, const float* first);
  void write_sums(const float* first, const float* second);
  // Part of P Q'.
  void write_product(const Term& term, const float* p, const float* q, Range part, const Span& to);

  PartContext context_;
  GradientSums& sums_;
  const FactorPlan plan_;
  Residuals residuals_;
  ChainSum first_;
  ChainSum second_;
  std::vector<std::vector<float>> q_;       // by term; none of what travels exactly
  std::vector<std::vector<float>> next_q_;  // if the step is taken
  Round round_;
  float* term_ = nullptr;                  // of the first sum, in this round
  std::vector<char> present_;              // by term, in this round
  std::vector<std::vector<char>> rounds_;  // by round: what was present
  std::vector<float> values_;
  MemoryLedger::Charge charge_;
  CompressionUse use_;
};

}  // namespace trireme::detail
