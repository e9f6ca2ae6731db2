#include "parallel/gradient/chain_sum.h"

#include <algorithm>

#include "device/stream.h"

namespace trireme::detail {
namespace {

// What every chain can begin with: -0 + x is x, also where x is -0.
constexpr float kNothing = -0.0F;

std::size_t float_bytes(std::int64_t numel) {
  return static_cast<std::size_t>(numel) * sizeof(float);
}

}  // namespace

ChainSum::ChainSum(const PartContext& context, std::int64_t numel)
    : context_(context),
      numel_(numel),
      own_(even_range(numel, context.ranks.size(), context.ranks.rank())),
      sum_(std::make_shared<float[]>(static_cast<std::size_t>(numel), kNothing)) {
  charges_.push_back(context.ledger.charge(MemoryCategory::kBuckets, float_bytes(numel)));
}

ChainSum::~ChainSum() {
  for (Work& work : works_) {
    work.forget();
  }
}

Span ChainSum::part(const std::shared_ptr<float[]>& of, Range range) const {
  return {of.get() + range.begin, range.size(), Dtype::kFloat32, of};
}

float* ChainSum::next_term() {
  terms_.push_back(std::make_shared<float[]>(static_cast<std::size_t>(numel_)));
  charges_.push_back(context_.ledger.charge(MemoryCategory::kBuckets, float_bytes(numel_)));
  return terms_.back().get();
}

void ChainSum::add(std::vector<Range> absent) {
  const std::shared_ptr<float[]>& term = terms_.back();
  if (context_.ranks.size() == 1) {
    std::int64_t done = 0;
    absent.push_back({numel_, numel_});
    for (const Range& range : absent) {
      const Range present{done, range.begin};
      device::host().add(part(sum_, present), part(term, present));
      done = range.end;
    }
    return;
  }
  sent_bytes_ += static_cast<std::int64_t>(float_bytes(numel_ - own_.size()));
  works_.push_back(
      context_.ranks.reduce_scatter(part(term, {0, numel_}),
                                    part(sum_, own_),
                                    ReduceOp::kSum,
                                    {},
                                    {.absent = std::move(absent), .accumulate = true}));
}

float* ChainSum::whole() {
  for (Work& work : works_) {
    work.wait();
  }
  works_.clear();
  if (const int size = context_.ranks.size(); size > 1) {
    sent_bytes_ += static_cast<std::int64_t>(float_bytes(own_.size() * (size - 1)));
    context_.ranks.all_gather(part(sum_, own_), part(sum_, {0, numel_})).wait();
  }
  return sum_.get();
}

void ChainSum::reset() {
  std::fill_n(sum_.get(), numel_, kNothing);
  terms_.clear();
  charges_.resize(1);
}

}  // namespace trireme::detail
