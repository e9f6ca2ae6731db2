#include "parallel/gradient/factor_plan.h"

#include <algorithm>

#include "compress/low_rank.h"
#include "parallel/gradient/compressed_path.h"
#include "trireme/core/error.h"

namespace trireme::detail {
namespace {

// The dimension that memory is divided by first: of a tensor that lies row by row, the first.
std::int64_t outermost(const Parameter& parameter) {
  std::int64_t size = 0;
  std::int64_t longest = -1;
  for (std::size_t d = 0; d < parameter.sizes.size(); ++d) {
    if (parameter.sizes[d] > 1 && parameter.strides[d] > longest) {
      longest = parameter.strides[d];
      size = parameter.sizes[d];
    }
  }
  return size;
}

std::string shape_text(const Parameter& parameter) {
  return concat("{} of sizes {}", {parameter.name, at::IntArrayRef(parameter.sizes)});
}

}  // namespace

std::vector<char> FactorPlan::factored() const {
  std::vector<char> factored(term_of.size(), 0);
  for (const Term& term : terms) {
    factored[term.parameter] = term.factored() ? 1 : 0;
  }
  return factored;
}

std::vector<std::string> FactorPlan::exact_parameters(const PartContext& context) const {
  std::vector<std::string> names;
  for (const Term& term : terms) {
    if (!term.factored()) {
      names.push_back(context.plan.parameters[term.parameter].name);
    }
  }
  return names;
}

FactorPlan plan_factors(const PartContext& context) {
  const Compressor& compressor = checked_compressor(context);
  FactorPlan plan;
  plan.rank = compressor.format().rank;
  const std::vector<char> dense = dense_parameters(context);
  plan.term_of.resize(dense.size());
  const Parameter* largest = nullptr;
  for (std::size_t p = 0; p < dense.size(); ++p) {
    const Parameter& parameter = context.plan.parameters[p];
    if (!dense[p]) {
      continue;
    }
    FactorPlan::Term term{.parameter = p};
    std::int64_t numel = parameter.numel;
    const std::int64_t rows = outermost(parameter);
    if (rows > 0 && saves_as_factors(rows, numel / rows, plan.rank)) {
      term.rows = rows;
      term.columns = numel / rows;
      numel = rows * plan.rank;
      term.second = {plan.second_numel, plan.second_numel + term.columns * plan.rank};
      plan.second_numel = term.second.end;
    }
    term.first = {plan.first_numel, plan.first_numel + numel + 1};
    plan.first_numel = term.first.end;
    plan.term_of[p] = plan.terms.size();
    plan.terms.push_back(term);
    largest = largest == nullptr || parameter.numel > largest->numel ? &parameter : largest;
  }
  TRIREME_CHECK(
      plan.second_numel > 0,
      "compressor {}: expected a matrix of more elements than its two factors of rank {}, "
      "found none in this model (its largest parameter is {}): use a smaller rank, or "
      "another compressor",
      {compressor.format().name, plan.rank, largest == nullptr ? "missing" : shape_text(*largest)});
  return plan;
}

}  // namespace trireme::detail
