#include "average/elements.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "trireme/core/error.h"

namespace trireme::detail {
namespace {

// Calls `use` with an element of the type.
template <class Use>
void with_element_type(Dtype dtype, const Use& use) {
  switch (dtype) {
    case Dtype::kFloat32:
      return use(float{});
    case Dtype::kFloat64:
      return use(double{});
    case Dtype::kFloat16:
      return use(c10::Half{});
    case Dtype::kBFloat16:
      return use(c10::BFloat16{});
    default:
      throw InternalError(concat("elements of type {} were to be averaged", {dtype_name(dtype)}));
  }
}

template <class T>
T nearest(double value) {
  if constexpr (std::is_same_v<T, c10::Half>) {
    return {c10::detail::fp16_ieee_from_fp32_value(static_cast<float>(value)),
            c10::Half::from_bits()};
  } else if constexpr (std::is_same_v<T, c10::BFloat16>) {
    return static_cast<float>(value);
  } else {
    return static_cast<T>(value);
  }
}

}  // namespace

void add_elements(Dtype dtype, const std::byte* from, std::span<double> to) {
  with_element_type(dtype, [&]<class T>(T) {
    const T* values = reinterpret_cast<const T*>(from);
    for (std::size_t i = 0; i < to.size(); ++i) {
      to[i] += static_cast<double>(values[i]);
    }
  });
}

void round_elements(Dtype dtype, std::span<const double> from, std::byte* to) {
  with_element_type(dtype, [&]<class T>(T) {
    T* values = reinterpret_cast<T*>(to);
    for (std::size_t i = 0; i < from.size(); ++i) {
      values[i] = nearest<T>(from[i]);
    }
  });
}

}  // namespace trireme::detail
