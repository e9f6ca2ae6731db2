#pragma once

#include <memory>
#include <mutex>
#include <span>

#include "device/cuda/gpu.h"
#include "device/driver.h"

namespace trireme::device::cuda {

// Memory of a GPU that other processes can map: its descriptor. Throws MemoryError.
FileDescriptor create_shared(Gpu& gpu, std::size_t bytes);
// What the bytes of shared memory are a multiple of.
std::size_t shared_page_bytes(Gpu& gpu);

// The blocks of all ranks as one run of addresses: those in which this rank has a part can be
// written, the others only be read, by kernels of this process too.
class CudaMapping final : public Mapping {
 public:
  // Throws MemoryError. The blocks that this rank makes are zero then.
  CudaMapping(Gpu& gpu, const Parts& parts, std::span<const FileDescriptor> offers);
  ~CudaMapping() override;
  CudaMapping(const CudaMapping&) = delete;
  CudaMapping& operator=(const CudaMapping&) = delete;

  std::byte* data() const override { return pointer_to(own_); }
  std::size_t size_bytes() const override { return parts_.bytes(); }
  const std::byte* read_only() override;

 private:
  // Maps all blocks anew; only this rank's can be written, and those only where `writes`.
  Address map_all(bool writes);
  void unmap(Address address, std::size_t blocks) noexcept;
  void release() noexcept;

  Gpu& gpu_;
  Parts parts_;
  std::vector<Handle>
      handles_;  // by block, 0 for one that did not come: a second mapping needs them
  Address own_ = 0;
  std::once_flag read_only_once_;
  Address read_only_ = 0;
};

}  // namespace trireme::device::cuda
