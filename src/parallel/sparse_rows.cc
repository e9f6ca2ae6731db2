#include "parallel/sparse_rows.h"

#include <memory>
#include <numeric>

#include <ATen/ops/empty.h>

#include "parallel/accumulate.h"
#include "trireme/tensor/span.h"

namespace trireme::detail {

SparseRows::SparseRows(const Unit& unit, const Parameter& parameter, const at::Tensor& gradient)
    : unit_(unit), width_(parameter.sizes[0] == 0 ? 0 : parameter.numel / parameter.sizes[0]) {
  const at::ScalarType type = scalar_type_of(unit.dtype);
  if (gradient.defined()) {
    indices_ = gradient._indices()[0].contiguous();
    values_ = gradient._values().reshape({-1, width_}).to(type).contiguous();
  } else {
    indices_ = at::empty({0}, at::kLong);
    values_ = at::empty({0, width_}, type);
  }
}

void SparseRows::add_up(Range range,
                        std::byte* sums,
                        Communicator& ranks,
                        MemoryLedger& ledger) const {
  const std::vector<std::int64_t> own = {indices_.numel()};
  Counts rows(static_cast<std::size_t>(ranks.size()));
  ranks.all_gather(own, rows).wait();
  const std::int64_t total = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
  Counts elements = rows;
  for (std::int64_t& count : elements) {
    count *= width_;
  }
  const auto element = dtype_bytes(unit_.dtype);
  const std::size_t bytes = static_cast<std::size_t>(total * width_) * element;
  const auto all_rows =
      std::make_shared_for_overwrite<std::int64_t[]>(static_cast<std::size_t>(total));
  const auto all_values = std::make_shared_for_overwrite<std::byte[]>(bytes);
  const MemoryLedger::Charge charge = ledger.charge(
      MemoryCategory::kBuckets, bytes + static_cast<std::size_t>(total) * sizeof(std::int64_t));
  ranks.all_gather(indices_, Span(all_rows.get(), total, Dtype::kInt64, all_rows), rows).wait();
  ranks
      .all_gather(
          values_, Span(all_values.get(), total * width_, unit_.dtype, all_values), elements)
      .wait();

  const std::size_t sum_element = dtype_bytes(unit_.sum_dtype());
  for (std::int64_t i = 0; i < total; ++i) {
    const std::int64_t first = all_rows[i] * width_;
    const Range part = intersection({first, first + width_}, range);
    if (!part.empty()) {
      accumulate(
          sums + static_cast<std::size_t>(part.begin - range.begin) * sum_element,
          unit_.sum_dtype(),
          all_values.get() + static_cast<std::size_t>(i * width_ + part.begin - first) * element,
          unit_.dtype,
          part.size(),
          false);
    }
  }
}

}  // namespace trireme::detail
