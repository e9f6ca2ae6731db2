#include "parallel/memory/runs.h"

#include "device/driver.h"
#include "trireme/tensor/span.h"

namespace trireme::detail {

Span run_of(const at::Tensor& tensor) {
  return {tensor.data_ptr(),
          tensor.numel(),
          *find_dtype(tensor.scalar_type()),
          {},
          device_of(tensor.device())};
}
ConstSpan const_run_of(const at::Tensor& tensor) {
  return {tensor.const_data_ptr(),
          tensor.numel(),
          *find_dtype(tensor.scalar_type()),
          {},
          device_of(tensor.device())};
}

device::Stream& stream_for(const ConstSpan& one, const ConstSpan& other) {
  return device::driver(one.device().is_host() ? other.device() : one.device()).stream();
}

OnHost::OnHost(const Span& run) : original_(run), here_(run) {
  if (!run.device().is_host() && run.numel() == 0) {
    here_ = {nullptr, 0, run.dtype()};
  } else if (!run.device().is_host()) {
    copy_ = device::Buffer(run.size_bytes());
    here_ = {copy_.data(), run.numel(), run.dtype()};
    stream_for(run).copy(here_, run);
    finish_work(run.device());
  }
}

OnHost::OnHost(const ConstSpan& run)
    : OnHost(Span(const_cast<std::byte*>(run.bytes()),
                  run.numel(),
                  run.dtype(),
                  run.owner(),
                  run.device())) {}

void OnHost::put_back() const {
  if (!original_.device().is_host() && here_.numel() > 0) {
    stream_for(original_).copy(original_, here_);
    finish_work(original_.device());
  }
}

void finish_work(Device device) {
  if (!device.is_host()) {
    device::host().wait(device::driver(device).stream().record());
  }
}

}  // namespace trireme::detail
