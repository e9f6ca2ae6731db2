#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/core/device.h"
#include "trireme/core/dtype.h"

namespace trireme {

// How a foreign container (at::Tensor, ...) becomes a span: specialise with a static
// `Span of(const T&)` that throws ConfigError for what cannot be one contiguous run of memory, and,
// where more can be read than written, a static `ConstSpan of_read(const T&)`.
template <class T>
struct SpanOf;

class Span;

template <class T>
concept SpanSource = requires(const T& source) {
  { SpanOf<T>::of(source) } -> std::convertible_to<Span>;
};

// A run of elements of one type in the memory of one device that a call reads. `owner`, where
// present, keeps the memory alive for as long as an asynchronous operation uses it; without one the
// caller does. Only the host's memory may be read and written through `bytes()`; that of another
// device is an address for its own work.
class ConstSpan {
 public:
  ConstSpan() = default;
  ConstSpan(const void* data,
            std::int64_t numel,
            Dtype dtype,
            std::shared_ptr<const void> owner = {},
            Device device = {})
      : data_(const_cast<void*>(data)),
        numel_(numel),
        dtype_(dtype),
        device_(device),
        owner_(std::move(owner)) {}

  template <class T>
  requires requires { DtypeOf<T>::kValue; }
  // NOLINTNEXTLINE(google-explicit-constructor): a view, like std::span
  ConstSpan(const std::vector<T>& values)
      : ConstSpan(values.data(), static_cast<std::int64_t>(values.size()), DtypeOf<T>::kValue) {}

  template <SpanSource T>
  // NOLINTNEXTLINE(google-explicit-constructor): lets a call take a tensor
  ConstSpan(const T& source);

  const std::byte* bytes() const { return static_cast<const std::byte*>(data_); }
  std::int64_t numel() const { return numel_; }
  Dtype dtype() const { return dtype_; }
  Device device() const { return device_; }
  std::size_t size_bytes() const { return static_cast<std::size_t>(numel_) * dtype_bytes(dtype_); }
  const std::shared_ptr<const void>& owner() const { return owner_; }

  // Elements [first, first + numel) of it, which must be there.
  ConstSpan part(std::int64_t first, std::int64_t numel) const {
    return {bytes() + offset(first), numel, dtype_, owner_, device_};
  }

 protected:
  std::size_t offset(std::int64_t element) const {
    return static_cast<std::size_t>(element) * dtype_bytes(dtype_);
  }

  void* data_ = nullptr;
  std::int64_t numel_ = 0;
  Dtype dtype_ = Dtype::kFloat32;
  Device device_;
  std::shared_ptr<const void> owner_;
};

// A run of elements that a call may write.
class Span : public ConstSpan {
 public:
  Span() = default;
  Span(void* data,
       std::int64_t numel,
       Dtype dtype,
       std::shared_ptr<const void> owner = {},
       Device device = {})
      : ConstSpan(data, numel, dtype, std::move(owner), device) {}

  template <class T>
  requires requires { DtypeOf<T>::kValue; }
  // NOLINTNEXTLINE(google-explicit-constructor): a view, like std::span
  Span(std::vector<T>& values)
      : Span(values.data(), static_cast<std::int64_t>(values.size()), DtypeOf<T>::kValue) {}

  template <SpanSource T>
  // NOLINTNEXTLINE(google-explicit-constructor): lets a call take a tensor
  Span(const T& source) : Span(SpanOf<T>::of(source)) {}

  std::byte* bytes() const { return static_cast<std::byte*>(data_); }
  Span part(std::int64_t first, std::int64_t numel) const {
    return {bytes() + offset(first), numel, dtype_, owner_, device_};
  }
};

template <SpanSource T>
ConstSpan::ConstSpan(const T& source)
    : ConstSpan([&]() -> ConstSpan {
        if constexpr (requires { SpanOf<T>::of_read(source); }) {
          return SpanOf<T>::of_read(source);
        } else {
          return SpanOf<T>::of(source);
        }
      }()) {}

}  // namespace trireme
