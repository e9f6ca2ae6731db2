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
    : gpu_(gpu), parts_(parts), handles_(parts.blocks.size(), 0) {
  const Current current(gpu_);
  try {
    std::size_t next = 0;  // they come rank after rank
    for (int maker = 0; maker < parts.size(); ++maker) {
      for (std::size_t block = 0; block < parts.blocks.size(); ++block) {
        if (parts.blocks[block].maker == maker) {
          // The driver takes a descriptor where it takes handles of other systems.
          void* const descriptor = pointer_to(static_cast<Address>(offers[next++].get()));
          check(cuda_calls().import_handle(&handles_[block], descriptor, kDescriptor),
                "taking shared memory of another rank");
        }
      }
    }
    own_ = map_all(/*writes=*/true);
    Address at = own_;
    for (const Block& block : parts.blocks) {
      if (block.maker == parts.rank) {
        check(cuda_calls().set_async(at, 0, block.bytes, nullptr), "clearing shared memory");
      }
      at += block.bytes;
    }
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
    if (handle != 0) {
      cuda_calls().release_handle(handle);
    }
  }
  handles_.clear();
}

// NOLINTNEXTLINE(bugprone-exception-escape): the driver is loaded, as there is one of these
void CudaMapping::unmap(Address address, std::size_t blocks) noexcept {
  Address at = address;
  for (std::size_t block = 0; block < blocks; ++block) {
    cuda_calls().unmap(at, parts_.blocks[block].bytes);
    at += parts_.blocks[block].bytes;
  }
  cuda_calls().free_addresses(address, size_bytes());
}

Address CudaMapping::map_all(bool writes) {
  Address address = 0;
  check(cuda_calls().reserve_addresses(&address, size_bytes(), 0, 0, 0), "reserving addresses");
  std::size_t mapped = 0;
  try {
    for (Address at = address; mapped < handles_.size(); ++mapped) {
      const Block& block = parts_.blocks[mapped];
      check(cuda_calls().map(at, block.bytes, 0, handles_[mapped], 0), "mapping shared memory");
      at += block.bytes;
    }
    Address at = address;
    for (const Block& block : parts_.blocks) {
      const AccessDescription access{
          {kOnDevice, gpu_.index()},
          writes && block.written_by(parts_.rank) ? kReadWrite : kReadOnly};
      const Result allowed = cuda_calls().set_access(at, block.bytes, &access, 1);
      TRIREME_CHECK(allowed == kSuccess || allowed == kOutOfMemory || block.maker == parts_.rank,
                    "{} cannot use memory of the GPU that rank {} works on ({}): ranks that share "
                    "memory need "
                    "GPUs with access to each other, which nvidia-smi topo -p2p r shows; give them "
                    "those, one "
                    "GPU, or the host (cpu)",
                    {device_name(gpu_.device()), block.maker, text_of(allowed)});
      check(allowed, "allowing a GPU to use shared memory");
      at += block.bytes;
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
