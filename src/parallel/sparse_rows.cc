#include "parallel/sparse_rows.h"

#include <numeric>

#include <ATen/ops/empty.h>

#include "parallel/accumulate.h"
#include "trireme/tensor/span.h"

namespace trireme::detail {

void sum_rows(const Unit& unit,
              const Parameter& parameter,
              const at::Tensor& gradient,
              Range range,
              std::byte* sums,
              Communicator& ranks,
              MemoryLedger& ledger) {
  const std::int64_t width = parameter.sizes[0] == 0 ? 0 : parameter.numel / parameter.sizes[0];
  const at::ScalarType type = scalar_type_of(unit.dtype);
  at::Tensor indices = at::empty({0}, at::kLong);
  at::Tensor values = at::empty({0, width}, type);
  if (gradient.defined()) {
    indices = gradient._indices()[0].contiguous();
    values = gradient._values().reshape({-1, width}).to(type).contiguous();
  }
  const std::vector<std::int64_t> own = {indices.numel()};
  Counts rows(static_cast<std::size_t>(ranks.size()));
  ranks.all_gather(own, rows).wait();
  const std::int64_t total = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
  Counts elements = rows;
  for (std::int64_t& count : elements) {
    count *= width;
  }
  const at::Tensor all_indices = at::empty({total}, at::kLong);
  at::Tensor all_values = at::empty({total, width}, type);
  const MemoryLedger::Charge charge =
      ledger.charge(MemoryCategory::kBuckets, all_indices.nbytes() + all_values.nbytes());
  ranks.all_gather(indices, all_indices, rows).wait();
  ranks.all_gather(values, all_values, elements).wait();
  all_values = all_values.to(scalar_type_of(unit.sum_dtype()));

  const auto* row = all_indices.const_data_ptr<std::int64_t>();
  const auto* from = static_cast<const std::byte*>(all_values.const_data_ptr());
  const std::size_t element = dtype_bytes(unit.sum_dtype());
  for (std::int64_t i = 0; i < total; ++i) {
    const Range part = intersection({row[i] * width, (row[i] + 1) * width}, range);
    if (!part.empty()) {
      accumulate(sums + static_cast<std::size_t>(part.begin - range.begin) * element,
                 unit.sum_dtype(),
                 from + static_cast<std::size_t>(i * width + part.begin - row[i] * width) * element,
                 unit.sum_dtype(),
                 part.size(),
                 false);
    }
  }
}

}  // namespace trireme::detail
