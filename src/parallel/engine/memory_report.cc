#include <algorithm>
#include <iomanip>
#include <locale>
#include <sstream>

#include "parallel/engine/engine_parts.h"
#include "trireme/shard/memory_formula.h"

namespace trireme {

MemoryReport EngineBase::memory_report() {
  detail::EngineParts& e = parts();
  MemoryReport report;
  const MemoryUse mine = e.ledger->use();
  report.ranks.resize(static_cast<std::size_t>(e.ranks->size()));
  constexpr std::int64_t kBytes = sizeof(MemoryUse);
  e.ranks
      ->all_gather({&mine, kBytes, Dtype::kUint8},
                   {report.ranks.data(), kBytes * e.ranks->size(), Dtype::kUint8})
      .wait();
  double predicted = 0;
  double ddp = 0;
  const detail::ParameterHome home = e.plan.ownership.home();
  const bool keeps_coded =
      home == detail::ParameterHome::kCopied || home == detail::ParameterHome::kScattered;
  for (const detail::Unit& unit : e.plan.units) {
    const auto element = keeps_coded && unit.rounding
                             ? static_cast<double>(unit.rounding->bytes()) /
                                   static_cast<double>(unit.layout.parameters_numel())
                             : static_cast<double>(dtype_bytes(unit.dtype));
    const auto exact = static_cast<double>(dtype_bytes(unit.sum_dtype()));
    const double kept_here = e.options.offload.any() ? 0 : 1;  // of states and masters
    const std::int64_t numel = unit.layout.parameters_numel();
    const double states = static_cast<double>(e.optimizer->rules().state_numel(unit)) /
                          static_cast<double>(std::max<std::int64_t>(1, numel));
    const ElementBytes bytes{
        .parameter = element,
        .gradient = unit.has_dense_sums() ? exact : 0,  // rows are few
        .optimizer = kept_here * exact * (states + (unit.trainable && unit.has_masters() ? 1 : 0))};
    predicted += memory_share(e.options.zero, e.owners->size(), numel, bytes).total();
    ddp += memory_share(0, e.owners->size(), numel, bytes).total();
  }
  report.predicted_bytes = static_cast<std::int64_t>(predicted);
  report.ddp_bytes = static_cast<std::int64_t>(ddp);
  return report;
}

std::string MemoryReport::to_string() const {
  const auto mebibytes = [](std::int64_t bytes) {
    std::ostringstream out;
    out.imbue(std::locale::classic());
    out << std::fixed << std::setprecision(2) << static_cast<double>(bytes) / (1 << 20);
    return out.str();
  };
  std::ostringstream out;
  out.imbue(std::locale::classic());
  out << "memory, MiB now (peak)\n" << std::left << std::setw(14) << "rank";
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    out << std::right << std::setw(22) << rank;
  }
  out << '\n';
  for (int category = 0; category < kMemoryCategories; ++category) {
    const auto at = static_cast<std::size_t>(category);
    out << std::left << std::setw(14)
        << memory_category_name(static_cast<MemoryCategory>(category));
    for (const MemoryUse& use : ranks) {
      out << std::right << std::setw(22)
          << mebibytes(use.now[at]) + " (" + mebibytes(use.peak[at]) + ")";
    }
    out << '\n';
  }
  out << std::left << std::setw(14) << "model";
  for (const MemoryUse& use : ranks) {
    out << std::right << std::setw(22) << mebibytes(use.model_bytes());
  }
  out << "\nmodel = parameters + gradients + optimizer; the ZeRO formula says "
      << mebibytes(predicted_bytes) << '\n';
  return out.str();
}

}  // namespace trireme
