#include "parallel/gradient/low_rank_path.h"

#include <algorithm>
#include <chrono>

#include "compress/low_rank.h"
#include "parallel/gradient/bucket_path.h"
#include "parallel/memory/runs.h"
#include "trireme/core/random.h"

namespace trireme::detail {
namespace {

constexpr std::int64_t kProductRows = 64;
constexpr std::uint64_t kFactorKey = 0x706F776572736764;  // of what is drawn

// Adds the time that it lives.
class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds) {}
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  ~Stopwatch() {
    seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }

 private:
  double& seconds_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace

LowRankPath::LowRankPath(const PartContext& context, GradientSums& sums)
    : context_(context),
      sums_(sums),
      plan_(plan_factors(context)),
      residuals_(context, context.options.compress->format(), plan_.factored(), nullptr),
      first_(context, plan_.first_numel),
      second_(context, plan_.second_numel),
      q_(plan_.terms.size()),
      next_q_(plan_.terms.size()),
      present_(plan_.terms.size(), 0),
      charge_(
          context.ledger.charge(MemoryCategory::kBuckets,
                                2 * static_cast<std::size_t>(plan_.second_numel) * sizeof(float))) {
  for (std::size_t t = 0; t < plan_.terms.size(); ++t) {
    const Term& term = plan_.terms[t];
    q_[t].resize(static_cast<std::size_t>(term.second.size()));
    prepare_factor(q_[t].data(), term.columns, plan_.rank, mix(kFactorKey, term.parameter));
    next_q_[t] = q_[t];
  }
  use_.exact_parameters = plan_.exact_parameters(context);
}

Carry LowRankPath::carry_of(std::int64_t round, const Term& term) {
  const std::size_t unit = context_.plan.places[term.parameter].unit;
  return residuals_.of_term(round, unit, context_.plan.range_of(term.parameter).begin).rest;
}

bool LowRankPath::add(std::size_t parameter, const at::Tensor& gradient) {
  const at::NoGradGuard no_grad;
  const Parameter& p = context_.plan.parameters[parameter];
  const at::Tensor ordered = in_order_of(p, context_.plan.unit_of(parameter).dtype, gradient);
  const ConstSpan values = const_run_of(ordered);
  if (term_ == nullptr) {
    term_ = first_.next_term();
  }
  const std::size_t t = plan_.term_of[parameter];
  const Term& term = plan_.terms[t];
  if (term.factored()) {
    const Carry carry = carry_of(round_.number, term);
    if (!present_[t]) {
      carry.wait(p.numel);
    }
    device::host().add(Span(carry.after, p.numel, Dtype::kFloat32), values);
  } else {
    device::host().add(
        Span(term_ + term.first.begin, p.numel, Dtype::kFloat32), values, !present_[t]);
  }
  present_[t] = 1;
  device::NotFinite not_finite = 0;
  device::host().check_finite(values, &not_finite);
  return not_finite == 0;
}

std::vector<Range> LowRankPath::absent(const std::vector<char>& present, Range Term::*range) const {
  std::vector<Range> absent;
  for (std::size_t t = 0; t < plan_.terms.size(); ++t) {
    const Range& of = plan_.terms[t].*range;
    if (present[t] || of.empty()) {
      continue;
    }
    if (!absent.empty() && absent.back().end == of.begin) {
      absent.back().end = of.end;
    } else {
      absent.push_back(of);
    }
  }
  return absent;
}

void LowRankPath::end_round(bool /*given_up*/) {
  if (context_.adds_locally() && !round_.last_of_this_rank) {
    return;
  }
  if (term_ == nullptr) {
    term_ = first_.next_term();
  }
  {
    const Stopwatch watch(use_.seconds);
    for (std::size_t t = 0; t < plan_.terms.size(); ++t) {
      const Term& term = plan_.terms[t];
      if (present_[t]) {
        term_[term.count_at()] = 1;
      }
      if (!term.factored()) {
        continue;
      }
      const Carry carry = carry_of(round_.number, term);
      if (present_[t]) {
        device::host().multiply({.rows = term.rows,
                                 .columns = plan_.rank,
                                 .depth = term.columns,
                                 .a = carry.after,
                                 .b = q_[t].data(),
                                 .c = term_ + term.first.begin});
      } else {
        carry.wait(term.rows * term.columns);
      }
    }
  }
  first_.add(absent(present_, &Term::first));
  count_exact_bytes(/*at_end=*/false);
  rounds_.push_back(present_);
  std::ranges::fill(present_, 0);
  term_ = nullptr;
}

void LowRankPath::count_exact_bytes(bool at_end) {
  for (std::size_t u = 0; u < context_.plan.units.size(); ++u) {
    const Unit& unit = context_.plan.units[u];
    if (!unit.trainable || unit.sparse || context_.ranks.size() == 1) {
      continue;
    }
    const std::int64_t own = context_.plan.ownership.mine(u).size();
    const std::int64_t numel =
        at_end ? own * (context_.ranks.size() - 1) : unit.layout.total_numel() - own;
    const Dtype dtype = at_end || context_.adds_locally() ? unit.sum_dtype() : unit.dtype;
    use_.exact_bytes += numel * static_cast<std::int64_t>(dtype_bytes(dtype));
  }
}

void LowRankPath::finish() {
  float* const first = first_.whole();
  {
    const Stopwatch watch(use_.seconds);
    for (const Term& term : plan_.terms) {
      if (term.factored() && first[term.count_at()] > 0) {
        orthonormalise(first + term.first.begin, term.rows, plan_.rank);
      }
    }
  }
  for (std::size_t round = 0; round < rounds_.size(); ++round) {
    add_second(static_cast<std::int64_t>(round), first);
  }
  const float* const second = second_.whole();
  const Stopwatch watch(use_.seconds);
  write_sums(first, second);
  for (std::size_t t = 0; t < plan_.terms.size(); ++t) {
    const Term& term = plan_.terms[t];
    next_q_[t] = q_[t];
    if (term.factored() && first[term.count_at()] > 0) {
      std::copy(second + term.second.begin, second + term.second.end, next_q_[t].begin());
      const std::int64_t step = context_.steps == nullptr ? 0 : *context_.steps;
      prepare_factor(
          next_q_[t].data(), term.columns, plan_.rank, mix(kFactorKey, term.parameter, step + 1));
    }
  }
}

void LowRankPath::add_second(std::int64_t round, const float* first) {
  const std::vector<char>& present = rounds_[static_cast<std::size_t>(round)];
  float* const to = second_.next_term();
  {
    const Stopwatch watch(use_.seconds);
    for (std::size_t t = 0; t < plan_.terms.size(); ++t) {
      const Term& term = plan_.terms[t];
      if (!term.factored() || !present[t]) {
        continue;
      }
      const Carry carry = carry_of(round, term);
      const float* const p = first + term.first.begin;
      float* const q = to + term.second.begin;
      device::host().multiply({.rows = term.columns,
                               .columns = plan_.rank,
                               .depth = term.rows,
                               .a = carry.after,
                               .b = p,
                               .c = q,
                               .a_transposed = true});
      device::host().multiply({.rows = term.rows,
                               .columns = term.columns,
                               .depth = plan_.rank,
                               .a = p,
                               .b = q,
                               .c = carry.after,
                               .b_transposed = true,
                               .alpha = -1,
                               .beta = 1});
    }
  }
  second_.add(absent(present, &Term::second));
}

void LowRankPath::write_product(
    const Term& term, const float* p, const float* q, Range part, const Span& to) {
  for (std::int64_t row = part.begin / term.columns; row * term.columns < part.end;
       row += kProductRows) {
    const std::int64_t rows = std::min(kProductRows, term.rows - row);
    values_.resize(static_cast<std::size_t>(rows * term.columns));
    device::host().multiply({.rows = rows,
                             .columns = term.columns,
                             .depth = plan_.rank,
                             .a = p + row * plan_.rank,
                             .b = q,
                             .c = values_.data(),
                             .b_transposed = true});
    const Range here = intersection(part, {row * term.columns, (row + rows) * term.columns});
    device::host().copy(
        part_of(to, {here.begin - part.begin, here.end - part.begin}),
        ConstSpan(
            values_.data() + (here.begin - row * term.columns), here.size(), Dtype::kFloat32));
  }
}

void LowRankPath::write_sums(const float* first, const float* second) {
  const bool everywhere =
      context_.plan.ownership.reach() == SumsReach::kEverywhere && context_.ranks.size() > 1;
  for (std::size_t u = 0; u < context_.plan.units.size(); ++u) {
    const Unit& unit = context_.plan.units[u];
    if (!unit.trainable || unit.sparse) {
      continue;
    }
    const Range held =
        everywhere ? Range{0, unit.layout.total_numel()} : context_.plan.ownership.mine(u);
    for (const Piece& piece : unit.layout.pieces(held)) {
      const Term& term = plan_.terms[plan_.term_of[context_.plan.parameter_of(u, piece)]];
      // What nobody has contributed to is not looked at (Agreement::used).
      if (piece.numel == 0 || !(first[term.count_at()] > 0)) {
        continue;
      }
      const Span to = sums_.at(u, {piece.offset, piece.offset + piece.numel});
      const Range part{piece.begin, piece.begin + piece.numel};
      const float* const values = first + term.first.begin;
      if (term.factored()) {
        write_product(term, values, second + term.second.begin, part, to);
      } else {
        device::host().copy(to, ConstSpan(values + part.begin, part.size(), Dtype::kFloat32));
      }
    }
    if (everywhere) {
      sums_.gathered(u);
    }
  }
  if (everywhere) {
    count_exact_bytes(/*at_end=*/true);
  }
}

void LowRankPath::end_step(StepOutcome outcome) {
  if (outcome == StepOutcome::kUpdated) {
    residuals_.keep();
    std::swap(q_, next_q_);
  }
  first_.reset();
  second_.reset();
  rounds_.clear();
  std::ranges::fill(present_, 0);
  term_ = nullptr;
}

void LowRankPath::describe(StateView& view, bool saved) {
  residuals_.describe(view, saved);
  for (std::size_t t = 0; t < plan_.terms.size(); ++t) {
    const Term& term = plan_.terms[t];
    if (!term.factored()) {
      continue;
    }
    view.tensors.push_back({"factor",
                            context_.plan.parameters[term.parameter].name,
                            Dtype::kFloat32,
                            {term.columns, plan_.rank},
                            {}});
    if (!saved || context_.ranks.rank() == 0) {  // the same on every rank
      view.slices.push_back({view.tensors.size() - 1,
                             {0, term.second.size()},
                             reinterpret_cast<std::byte*>(q_[t].data())});
    }
  }
}

CompressionUse LowRankPath::compression() const {
  CompressionUse use = use_;
  use.sent_bytes = first_.sent_bytes() + second_.sent_bytes();
  return use;
}

}  // namespace trireme::detail
