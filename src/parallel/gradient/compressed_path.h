#pragma once

#include <deque>

#include "compress/block_coder.h"
#include "parallel/gradient/block_runs.h"
#include "parallel/gradient/bucket_path.h"
#include "parallel/gradient/residuals.h"
#include "parallel/gradient/sum_blocks.h"
#include "trireme/parallel/engine.h"

namespace trireme::detail {

// That of the options. Throws ConfigError for a context that no compressor goes with.
const Compressor& checked_compressor(const PartContext& context);
// By parameter: those that have gradients, and not as sparse rows.
std::vector<char> dense_parameters(const PartContext& context);

// Sums dense gradients that travel as a compressor makes them (EngineOptions::compress).
//
// Note [compression is a wire format of the sum]
// A rank encodes the blocks of its micro-batch's gradient and sends each to the owner of its
// elements, who decodes the blocks of all ranks and adds them in the order of the micro-batches.
// When the step's last are in, the owner encodes its sums and goes on with what they are decoded
// to: the wire's form of them, where DDP sends them to other machines, and the same values where
// nothing is sent. So a term depends on its micro-batch and its block, and the sum on the terms:
// neither on the stage, nor on the number of ranks, nor on where units are divided, since a block
// across two owners' border goes to both. A process alone does all of it but the sending.
class CompressedPath final : public BucketPath {
 public:
  CompressedPath(const PartContext& context, GradientSums& sums);

  void finish() override;
  void end_step(StepOutcome outcome) override;
  void describe(StateView& view, bool saved) override { residuals_.describe(view, saved); }
  CompressionUse compression() const override;

 protected:
  void launch(const Ready& ready) override;
  void finished(std::size_t bucket, const Span& memory) override;

 private:
  // Blocks on their way to one owner, which for each run are preceded by whether there is anything.
  struct Mail {
    std::vector<BlockRun> runs;
    std::size_t bytes = 0;
    std::size_t exact_bytes = 0;  // of the elements that the owner gets
  };
  struct Route {  // of a bucket
    std::vector<BlockRun> runs;
    std::vector<Mail> to;        // by owner
    std::vector<char> has_sums;  // of this rank's: a term of this step is in them
  };
  struct Arriving {
    std::shared_ptr<std::byte[]> bytes;
    MemoryLedger::Charge charge;
  };

  std::size_t bytes_of(std::int64_t blocks) const;
  BlockKey key_of(std::size_t unit, const BlockRun& run, bool sum) const;
  // Memory for a run's values, where they are not encoded from, or decoded to, their own place.
  std::span<float> values_of(Range range);
  // What of a launched bucket is there goes into `coded`, run after run.
  std::vector<char> encode(const Ready& ready, std::vector<std::byte>& coded);
  void take_in(std::size_t bucket, const std::byte* mail);
  // The sums of a unit become what others decode.
  void round_sums(std::size_t unit);
  void gather_sums(std::size_t unit, const std::vector<std::byte>& own);

  BlockCoder coder_;
  SumBlocks blocks_;
  Residuals residuals_;
  std::vector<Route> routes_;              // by bucket
  std::vector<std::vector<Mail>> owners_;  // by unit and owner: blocks of their sums
  std::vector<char> used_;                 // by parameter: its sums have something
  std::deque<Arriving> arriving_;          // in the order of `begun`
  std::vector<float> values_;              // of a run, or of a longer one
  CompressionUse use_;
};

}  // namespace trireme::detail
