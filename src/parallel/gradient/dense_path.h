#pragma once

#include "parallel/gradient/bucket_path.h"
#include "parallel/gradient/round_records.h"
#include "parallel/memory/group_totals.h"

namespace trireme::detail {

// Sums dense gradients over the ranks in one order, whatever the stage, the world and the buckets
// (docs/parity.md): round k adds micro-batches k*N to k*N+N-1, in rank order, to sums that live
// with the owner of each range.
class DensePath final : public BucketPath {
 public:
  DensePath(const PartContext& context, GradientSums& sums, RoundRecords& records);

  void set_rounds(std::int64_t rounds) override;
  void begin_round(const Round& round) override;
  void finish() override;
  void end_step(StepOutcome outcome) override;

 protected:
  void launch(const Ready& ready) override;
  void finished(std::size_t bucket, const Span& memory) override;

 private:
  // Rounds of one group of micro-batches, see Note [groups of micro-batches]; 0 where a round has
  // whole groups.
  std::int64_t rounds_per_group(std::int64_t rounds) const;
  // The sums of a group that is complete go to the totals.
  void close_group();
  // Of a bucket: where the sums hold nothing yet.
  std::vector<Range> fresh_ranges(const Bucket& bucket);

  RoundRecords& records_;
  GroupTotals totals_;
  std::int64_t rounds_per_group_ = 0;
};

}  // namespace trireme::detail
