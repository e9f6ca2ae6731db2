#include "trireme/tensor/span.h"

#include <algorithm>
#include <atomic>
#include <iterator>

#include "tensor/span_guard.h"
#include "trireme/core/error.h"

namespace trireme {

namespace {

constexpr at::ScalarType kTypes[] = {at::kFloat,
                                     at::kDouble,
                                     at::kHalf,
                                     at::kBFloat16,
                                     at::kInt,
                                     at::kLong,
                                     at::kByte,
                                     at::kChar,
                                     at::kShort,
                                     at::kBool};
static_assert(std::size(kTypes) == kDtypeCount);

}  // namespace

std::optional<Dtype> find_dtype(at::ScalarType type) {
  const auto* const found = std::find(std::begin(kTypes), std::end(kTypes), type);
  if (found == std::end(kTypes)) {
    return std::nullopt;
  }
  return static_cast<Dtype>(found - std::begin(kTypes));
}

Dtype dtype_of(at::ScalarType type) {
  if (const auto dtype = find_dtype(type)) {
    return *dtype;
  }
  throw ConfigError(detail::concat(
      "a tensor of {} cannot be communicated: use float32, float64, float16, bfloat16, int64, "
      "int32, int16, int8, uint8 or bool{}",
      {c10::toString(type), c10::isComplexType(type) ? ", or torch::view_as_real() of it" : ""}));
}

Device device_of(at::Device device) {
  TRIREME_CHECK(device.is_cpu() || device.is_cuda(),
                "a tensor on {} cannot be used here: expected the CPU or a GPU (cuda)",
                {device.str()});
  return device.is_cpu() ? Device{}
                         : Device{DeviceType::kCuda, static_cast<std::int16_t>(device.index())};
}

at::Device torch_device_of(Device device) {
  return device.is_host() ? at::Device(at::kCPU)
                          : at::Device(at::kCUDA, static_cast<at::DeviceIndex>(device.index));
}

at::ScalarType scalar_type_of(Dtype dtype) {
  return kTypes[static_cast<int>(dtype)];
}

namespace {

std::atomic<detail::SpanGuard> span_guard{nullptr};

// What a collective can work on.
void check(const at::Tensor& tensor, bool write) {
  TRIREME_CHECK(tensor.defined(), "an undefined tensor cannot be communicated");
  TRIREME_CHECK(tensor.layout() == at::kStrided,
                "a tensor with layout {} cannot be communicated: make it dense with to_dense()",
                {tensor.layout()});
  TRIREME_CHECK(tensor.device().is_cpu(),
                "a tensor on ",
                tensor.device().str(),
                " cannot be communicated through host memory: move it with .to(torch::kCPU)");
  TRIREME_CHECK(tensor.is_contiguous(),
                "a tensor of sizes {} and strides {} is not contiguous: pass tensor.contiguous(), "
                "and copy the result back if the operation writes to it",
                {tensor.sizes(), tensor.strides()});
  if (const detail::SpanGuard guard = span_guard.load(std::memory_order_relaxed)) {
    guard(tensor, write);
  }
}

std::shared_ptr<const void> owner_of(const at::Tensor& tensor) {
  return std::make_shared<const c10::Storage>(tensor.storage());
}

}  // namespace

void detail::set_span_guard(SpanGuard guard) {
  span_guard.store(guard, std::memory_order_relaxed);
}

Span SpanOf<at::Tensor>::of(const at::Tensor& tensor) {
  check(tensor, /*write=*/true);
  const Dtype dtype = dtype_of(tensor.scalar_type());
  return {
      tensor.numel() == 0 ? nullptr : tensor.data_ptr(), tensor.numel(), dtype, owner_of(tensor)};
}

ConstSpan SpanOf<at::Tensor>::of_read(const at::Tensor& tensor) {
  check(tensor, /*write=*/false);
  const Dtype dtype = dtype_of(tensor.scalar_type());
  return {tensor.numel() == 0 ? nullptr : tensor.const_data_ptr(),
          tensor.numel(),
          dtype,
          owner_of(tensor)};
}

}  // namespace trireme
