#include "device/buffer.h"

#include "trireme/core/error.h"

namespace trireme::device {

Buffer::Buffer(std::size_t bytes, Device device) : Buffer(bytes, device, Reach::kDevice) {}

Buffer::Buffer(std::size_t bytes, Device device, Reach reach)
    : data_(bytes == 0 ? nullptr : driver(device).allocate(bytes, reach)),
      bytes_(bytes),
      device_(device),
      reach_(reach) {}

Buffer Buffer::visible_to(Device device, std::size_t bytes) {
  return {bytes, device, Reach::kVisible};
}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(device_, other.device_);
  std::swap(reach_, other.reach_);
  return *this;
}

// NOLINTNEXTLINE(bugprone-exception-escape): the driver that gave the memory is there
Buffer::~Buffer() {
  if (data_ != nullptr) {
    driver(device_).release(data_, bytes_, reach_);
  }
}

Span Buffer::span(Dtype dtype, std::int64_t numel, std::size_t offset) const {
  TRIREME_ASSERT(
      numel >= 0 && offset + static_cast<std::size_t>(numel) * dtype_bytes(dtype) <= bytes_,
      "memory of {} bytes cannot hold {} elements of {} at byte {}",
      {bytes_, numel, dtype_name(dtype), offset});
  return {data_ + offset, numel, dtype, {}, device()};
}

}  // namespace trireme::device
