#pragma once

#include <cstddef>
#include <utility>

namespace trireme {

// Private memory of this process, zero at first, aligned to a page, in huge pages where it is large
// enough for them. Pages that were never written take no memory.
class HostMemory {
 public:
  HostMemory() = default;
  explicit HostMemory(std::size_t bytes);  // throws MemoryError
  HostMemory(HostMemory&& other) noexcept { *this = std::move(other); }
  HostMemory& operator=(HostMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~HostMemory();

  std::byte* data() const { return data_; }
  std::size_t size_bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace trireme
