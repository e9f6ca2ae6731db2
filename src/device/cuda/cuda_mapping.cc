#include "device/cuda/cuda_mapping.h"

#include "trireme/core/error.h"

namespace trireme::device::cuda {
namespace {

AllocationProperties shared_properties(const Gpu& gpu) {
  return {.type = kPinned,
          .handle_types = kDescriptor,
          .location = {kOnDevice, gpu.index()},
          .unused = nullptr,
          .flags = {}};
}

}  // namespace

std::size_t shared_page_bytes(Gpu& gpu) {
  const AllocationProperties properties = shared_properties(gpu);
  std::size_t bytes = 0;
  check(cuda_calls().granularity(&bytes, &properties, kRecommended), "asking for its page size");
  return bytes;
}

FileDescriptor create_shared(Gpu& gpu, std::size_t bytes) {
  const AllocationProperties properties = shared_properties(gpu);
  const Current current(gpu);
  Handle handle = 0;
  check(cuda_calls().create_handle(&handle, bytes, &properties, 0), "making shared memory");
  int descriptor = -1;
  const Result result = cuda_calls().export_handle(&descriptor, handle, kDescriptor, 0);
  cuda_calls().release_handle(handle);  // the descriptor keeps the memory
  check(result, "making a descriptor of shared memory");
  return FileDescriptor(descriptor);
}

CudaMapping::CudaMapping(Gpu& gpu, const Parts& parts, std::span<const FileDescriptor> offers)
    : gpu_(gpu), parts_(parts) {
  const Current current(gpu_);
  try {
    for (const FileDescriptor& offer : offers) {
      Handle handle = 0;
      // The driver takes a descriptor where it takes handles of other systems.
      void* const descriptor = pointer_to(static_cast<Address>(offer.get()));
      check(cuda_calls().import_handle(&handle, descriptor, kDescriptor),
            "taking shared memory of another rank");
      handles_.push_back(handle);
    }
    own_ = map_all(/*writes=*/true);
    const Address mine = own_ + static_cast<std::size_t>(parts.rank) * parts.bytes;
    check(cuda_calls().set_async(mine, 0, parts.bytes, nullptr), "clearing shared memory");
    check(cuda_calls().stream_synchronize(nullptr), "clearing shared memory");
  } catch (...) {
    release();
    throw;
  }
}

CudaMapping::~CudaMapping() {
  try {
    const Current current(gpu_);
    // Kernels that were issued may still be using it.
    cuda_calls().context_synchronize();
    release();
  } catch (const Error&) {  // the GPU is lost, and its memory with it
  }
}

// NOLINTNEXTLINE(bugprone-exception-escape): the driver is loaded, as there is one of these
void CudaMapping::release() noexcept {
  if (own_ != 0) {
    unmap(own_, handles_.size());
  }
  if (read_only_ != 0) {
    unmap(read_only_, handles_.size());
  }
  for (const Handle handle : handles_) {
    cuda_calls().release_handle(handle);
  }
  handles_.clear();
}

// NOLINTNEXTLINE(bugprone-exception-escape): the driver is loaded, as there is one of these
void CudaMapping::unmap(Address address, std::size_t parts) noexcept {
  for (std::size_t part = 0; part < parts; ++part) {
    cuda_calls().unmap(address + part * parts_.bytes, parts_.bytes);
  }
  cuda_calls().free_addresses(address, size_bytes());
}

Address CudaMapping::map_all(bool writes) {
  Address address = 0;
  check(cuda_calls().reserve_addresses(&address, size_bytes(), 0, 0, 0), "reserving addresses");
  std::size_t mapped = 0;
  try {
    for (; mapped < handles_.size(); ++mapped) {
      check(cuda_calls().map(address + mapped * parts_.bytes, parts_.bytes, 0, handles_[mapped], 0),
            "mapping shared memory");
    }
    for (std::size_t part = 0; part < handles_.size(); ++part) {
      const bool mine = part == static_cast<std::size_t>(parts_.rank);
      const AccessDescription access{{kOnDevice, gpu_.index()},
                                     mine && writes ? kReadWrite : kReadOnly};
      check(cuda_calls().set_access(address + part * parts_.bytes, parts_.bytes, &access, 1),
            "allowing a GPU to use shared memory");
    }
  } catch (...) {
    unmap(address, mapped);
    throw;
  }
  return address;
}

const std::byte* CudaMapping::read_only() {
  std::call_once(read_only_once_, [this] {
    const Current current(gpu_);
    read_only_ = map_all(/*writes=*/false);
  });
  return pointer_to(read_only_);
}

}  // namespace trireme::device::cuda
