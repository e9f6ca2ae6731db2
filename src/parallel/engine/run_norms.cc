#include "parallel/engine/run_norms.h"

#include <algorithm>
#include <cmath>

#include "parallel/memory/runs.h"

namespace trireme::detail {
namespace {

template <class T>
bool has_nan(const std::byte* data, std::int64_t numel) {
  const auto* values = reinterpret_cast<const T*>(data);
  return std::any_of(values, values + numel, [](T value) { return std::isnan(value); });
}

bool has_nan(const ConstSpan& run) {
  if (!run.device().is_host()) {
    const device::Buffer copy(run.size_bytes());
    const Span here(copy.data(), run.numel(), run.dtype());
    stream_for(run).copy(here, run);
    finish_work(run.device());
    return has_nan(ConstSpan(here));
  }
  return run.dtype() == Dtype::kFloat64 ? has_nan<double>(run.bytes(), run.numel())
                                        : has_nan<float>(run.bytes(), run.numel());
}

}  // namespace

RunNorms::RunNorms(Device device, const Scaling& scaling)
    : device_(device),
      scaling_(scaling),
      memory_(device::Buffer::visible_to(device, sizeof(Results))),
      results_(*reinterpret_cast<Results*>(memory_.data())) {}

void RunNorms::begin_again(const Scaling& scaling) {
  scaling_ = scaling;
  results_ = {};
}

double RunNorms::largest(const std::vector<ConstSpan>& runs) {
  for (const ConstSpan& run : runs) {
    stream_for(run).largest(run, scaling_, &results_.largest);
  }
  finish_work(device_);
  return results_.largest;
}

SquareSum RunNorms::squares(const std::vector<ConstSpan>& runs, const SquareQuanta& quanta) {
  for (const ConstSpan& run : runs) {
    stream_for(run).squares(run, quanta, scaling_, &results_.sum);
  }
  finish_work(device_);
  return results_.sum;
}

bool RunNorms::any_nan(const std::vector<ConstSpan>& runs) {
  return std::ranges::any_of(runs, [](const ConstSpan& run) { return has_nan(run); });
}

}  // namespace trireme::detail
