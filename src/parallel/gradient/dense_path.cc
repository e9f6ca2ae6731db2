#include "parallel/gradient/dense_path.h"

#include "parallel/memory/runs.h"

namespace trireme::detail {

DensePath::DensePath(const PartContext& context, GradientSums& sums, RoundRecords& records)
    : BucketPath(context, sums, /*launches=*/context.ranks.size() > 1),
      records_(records),
      totals_(context, sums) {}

std::int64_t DensePath::rounds_per_group(std::int64_t rounds) const {
  const int group = context_.ranks.sum_group();
  const bool spans = group > context_.ranks.size() &&
                     context_.options.sum_order == SumOrder::kChained && rounds > 1;
  return spans ? group / context_.ranks.size() : 0;
}

void DensePath::set_rounds(std::int64_t rounds) {
  if (rounds_per_group(rounds) > 0) {
    totals_.make();
  }
  BucketPath::set_rounds(rounds);
  rounds_per_group_ = rounds_per_group(rounds);
}

void DensePath::begin_round(const Round& round) {
  if (rounds_per_group_ > 0 && round.number > 0 && round.number % rounds_per_group_ == 0) {
    close_group();
  }
  BucketPath::begin_round(round);
}

void DensePath::close_group() {
  BucketPath::finish();
  totals_.add(records_.in_sums());
  records_.begin_sums();
  forget_local();
}

std::vector<Range> DensePath::fresh_ranges(const Bucket& bucket) {
  const std::vector<char>& in_sums = records_.in_sums();
  std::vector<Range> fresh;
  for (const Piece& piece : bucket.pieces) {
    if (!in_sums[context_.plan.parameter_of(bucket.unit, piece)]) {
      fresh.push_back(
          {piece.offset - bucket.range.begin, piece.offset - bucket.range.begin + piece.numel});
    }
  }
  return fresh;
}

void DensePath::launch(const Ready& ready) {
  const std::size_t b = ready.bucket;
  const bool by_machine = context_.plan.ownership.by_machine();
  const bool in_ring = memory_.space(unit_of(b)) == BucketMemory::Space::kRing;
  Ready filled = ready;
  if (filled.memory.bytes() == nullptr) {
    // Nothing of this bucket came. It is not read, but has to be somewhere.
    if (in_ring && !by_machine) {
      filled.memory = memory_.run(bucket(b), 0);
    } else {
      filled = with_memory(std::move(filled));
    }
  }
  SumTerms terms{.absent = ready.absent};
  if (by_machine) {
    begun(filled, context_.ranks.all_reduce(filled.memory, ReduceOp::kSum, std::move(terms)));
    return;
  }
  // The sums of earlier rounds are the beginning of the chain.
  bool later = in_ring && round_.number > 0;
  if (rounds_per_group_ > 0) {
    terms.group = 1;  // the rounds of a group are one chain
    later = round_.number % rounds_per_group_ != 0;
  }
  if (later) {
    terms.accumulate = true;
    terms.fresh = fresh_ranges(bucket(b));
  }
  const std::size_t unit = bucket(b).unit;
  begun(filled,
        context_.ranks.reduce_scatter(filled.memory,
                                      sums_.at(unit, own_part(b)),
                                      ReduceOp::kSum,
                                      context_.plan.ownership.counts(unit, bucket(b).range),
                                      std::move(terms)));
}

void DensePath::finished(std::size_t b, const Span& memory) {
  if (!context_.plan.ownership.by_machine()) {
    return;
  }
  // What nobody has contributed to is not looked at (Agreement::used).
  const Range own = own_part(b);
  const std::int64_t begin = bucket(b).range.begin;
  stream_for(memory).copy(sums_.at(bucket(b).unit, own),
                          part_of(memory, {own.begin - begin, own.end - begin}));
}

void DensePath::finish() {
  BucketPath::finish();
  if (rounds_per_group_ > 0) {
    close_group();
    totals_.move_to_sums();
  }
}

void DensePath::end_step(StepOutcome outcome) {
  BucketPath::end_step(outcome);
  totals_.reset();
}

}  // namespace trireme::detail
