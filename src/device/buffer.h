#pragma once

#include <cstddef>
#include <utility>

#include "device/driver.h"
#include "trireme/core/span.h"

namespace trireme::device {

// Memory of this process on a device: zero at first, aligned to a page. The host's is in huge pages
// where it is large enough for them, and pages that were never written take none.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(std::size_t bytes, Device device = {});  // throws MemoryError
  // Of the host, where work of `device` leaves results (device/stream.h).
  static Buffer visible_to(Device device, std::size_t bytes);
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  std::byte* data() const { return data_; }
  std::size_t size_bytes() const { return bytes_; }
  // Where the memory is.
  Device device() const { return reach_ == Reach::kVisible ? Device{} : device_; }
  // `numel` elements from byte `offset` on, which must be there.
  Span span(Dtype dtype, std::int64_t numel, std::size_t offset = 0) const;

 private:
  Buffer(std::size_t bytes, Device device, Reach reach);

  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  Device device_;  // whose driver takes it back
  Reach reach_ = Reach::kDevice;
};

}  // namespace trireme::device
