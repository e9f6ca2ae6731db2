#include "parallel/gradient/exact_check.h"

#include <cmath>

#include "parallel/gradient/bucket_path.h"
#include "parallel/memory/runs.h"

namespace trireme::detail {
namespace {

EngineOptions without_compression(EngineOptions options) {
  options.compress = nullptr;
  return options;
}

const float* floats_of(const ConstSpan& span) {
  return reinterpret_cast<const float*>(span.bytes());
}

}  // namespace

ExactCheck::ExactCheck(const PartContext& context, RoundRecords& records)
    : options_(without_compression(context.options)),
      context_{.ranks = context.ranks,
               .owners = context.owners,
               .plan = context.plan,
               .options = options_,
               .ledger = context.ledger,
               .engine = context.engine,
               .steps = context.steps},
      every_(context.options.compress_check),
      sums_(context_),
      path_(context_, sums_, records) {}

bool ExactCheck::due() const {
  return (*context_.steps + 1) % every_ == 0;
}

void ExactCheck::add(std::size_t parameter, const at::Tensor& gradient) {
  // What takes memory does it here, inside backward, where there may be too little of it.
  const at::NoGradGuard no_grad;
  waiting_.emplace_back(
      parameter,
      in_order_of(
          context_.plan.parameters[parameter], context_.plan.unit_of(parameter).dtype, gradient));
}

void ExactCheck::end_round(const Round& round, bool tells, bool given_up) {
  path_.begin_round(round);
  if (!given_up) {  // what has come does not count
    for (const auto& [parameter, gradient] : waiting_) {
      path_.add(parameter, gradient);
    }
  }
  waiting_.clear();
  if (tells) {
    path_.end_round(given_up);
  }
}

void ExactCheck::compare(const GradientSums& compressed, const std::vector<bool>& used) {
  enum { kExact, kFound, kBoth, kOff, kSums };  // squares, products, squares of differences
  std::vector<double> sums(kSums, 0.0);
  for (std::size_t u = 0; u < context_.plan.units.size(); ++u) {
    const Unit& unit = context_.plan.units[u];
    if (!unit.trainable || unit.sparse) {
      continue;
    }
    for (const Piece& piece : unit.layout.pieces(context_.plan.ownership.mine(u))) {
      if (!used[context_.plan.parameter_of(u, piece)]) {
        continue;
      }
      const Range range{piece.offset, piece.offset + piece.numel};
      const float* const exact = floats_of(sums_.at(u, range));
      const float* const found = floats_of(compressed.at(u, range));
      for (std::int64_t i = 0; i < piece.numel; ++i) {
        const double e = exact[i];
        const double f = found[i];
        sums[kExact] += e * e;
        sums[kFound] += f * f;
        sums[kBoth] += e * f;
        sums[kOff] += (f - e) * (f - e);
      }
    }
  }
  context_.ranks.all_reduce(sums).wait();
  if (sums[kExact] > 0) {  // otherwise there is nothing to compare with
    last_ = {.step = *context_.steps + 1,
             .relative_error = std::sqrt(sums[kOff] / sums[kExact]),
             .cosine = sums[kFound] > 0 ? sums[kBoth] / std::sqrt(sums[kFound] * sums[kExact]) : 0,
             .descent = sums[kBoth] / sums[kExact]};
  }
}

}  // namespace trireme::detail
