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

void finish_work(Device device) {
  if (!device.is_host()) {
    device::host().wait(device::driver(device).stream().record());
  }
}

}  // namespace trireme::detail
