#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/settings/train_settings.h"

namespace trireme::detail {

// Who computes how many of a step's micro-batches, and who is slow. Every rank has one and feeds it
// with the same numbers, so that all come to the same result.
class RankBalance {
 public:
  RankBalance(const TrainSettings& settings, int world);

  // How to deal a step of this many micro-batches.
  std::vector<std::int64_t> deal(std::int64_t micro_batches) const;

  // After a step: what each rank spent on computing, and on how many micro-batches.
  void observe(const std::vector<double>& seconds, const std::vector<std::int64_t>& micro_batches);
  // True when it is time to deal anew (balance = measured).
  bool wants_new_deal() const { return follows_ && steps_ > 0 && steps_ % kWindow == 0; }

  // Ranks whose micro-batches take more than straggler_factor times the median, in two windows in a
  // row (in one, anything else that runs on a machine may be the reason); what there is to say when
  // they are not those of before, else empty. At most once per window.
  std::string news();
  const std::vector<std::int64_t>& stragglers() const { return stragglers_; }

 private:
  static constexpr std::int64_t kWindow = 20;  // steps over which times are averaged

  bool follows_;
  bool may_follow_;
  double factor_;
  std::vector<double> speeds_;
  std::vector<double> window_seconds_;
  std::vector<std::int64_t> window_micro_batches_;
  std::vector<double> seconds_each_;  // of a micro-batch, in the last whole window; 0: not known
  std::int64_t steps_ = 0;
  std::vector<std::int64_t> slow_;  // in the last whole window
  std::vector<std::int64_t> stragglers_;
};

// What to say where a step has fewer micro-batches than there are ranks, since some then compute
// nothing; else empty. `servers`: ranks beside these, which are to compute nothing. `common`: what
// the size of a micro-batch has to divide.
std::string idle_ranks(std::int64_t ranks,
                       std::int64_t servers,
                       std::int64_t batch,
                       std::int64_t micro_batch,
                       std::int64_t common,
                       bool resumed);

}  // namespace trireme::detail
