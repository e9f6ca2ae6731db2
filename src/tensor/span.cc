#include "trireme/tensor/span.h"

#include "trireme/core/error.h"

namespace trireme {

Dtype dtype_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return Dtype::kFloat32;
    case at::kDouble:
      return Dtype::kFloat64;
    case at::kHalf:
      return Dtype::kFloat16;
    case at::kBFloat16:
      return Dtype::kBFloat16;
    case at::kInt:
      return Dtype::kInt32;
    case at::kLong:
      return Dtype::kInt64;
    case at::kByte:
      return Dtype::kUint8;
    default:
      throw ConfigError(
          detail::concat("a tensor of ",
                         c10::toString(type),
                         " cannot be communicated: use float32, float64, float16, bfloat16, "
                         "int32, int64 or uint8"));
  }
}

at::ScalarType scalar_type_of(Dtype dtype) {
  constexpr at::ScalarType kTypes[] = {
      at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kInt, at::kLong, at::kByte};
  return kTypes[static_cast<int>(dtype)];
}

Span SpanOf<at::Tensor>::of(const at::Tensor& tensor) {
  TRIREME_CHECK(tensor.defined(), "an undefined tensor cannot be communicated");
  TRIREME_CHECK(tensor.layout() == at::kStrided,
                "a tensor with layout ",
                tensor.layout(),
                " cannot be communicated: make it dense with to_dense()");
  TRIREME_CHECK(tensor.device().is_cpu(),
                "a tensor on ",
                tensor.device().str(),
                " cannot be communicated through host memory: move it with .to(torch::kCPU)");
  TRIREME_CHECK(
      tensor.is_contiguous(),
      "a tensor of sizes ",
      tensor.sizes(),
      " and strides ",
      tensor.strides(),
      " is not contiguous: pass tensor.contiguous(), and copy the result back where it is written");
  const Dtype dtype = dtype_of(tensor.scalar_type());
  const auto owner = std::make_shared<const c10::Storage>(tensor.storage());
  return {tensor.numel() == 0 ? nullptr : tensor.data_ptr(), tensor.numel(), dtype, owner};
}

}  // namespace trireme
