#include "device/cuda/cuda_driver.h"

#include <cstring>
#include <mutex>

#include "device/cuda/cuda_mapping.h"
#include "device/cuda/cuda_stream.h"
#include "device/cuda/gpu.h"
#include "device/cuda/kernel_compiler.h"
#include "device/driver.h"
#include "trireme/core/error.h"

namespace trireme::device {
namespace {

using cuda::check;
using cuda::cuda_calls;
using cuda::Current;

class CudaDriver final : public Driver {
 public:
  explicit CudaDriver(int index)
      : gpu_(index), stream_(gpu_), page_bytes_(cuda::shared_page_bytes(gpu_)) {}

  Stream& stream() override { return stream_; }
  std::unique_ptr<Stream> make_stream() override { return cuda::CudaStream::on_its_own(gpu_); }
  std::string identity() const override { return gpu_.uuid(); }
  std::size_t page_bytes() const override { return page_bytes_; }

  std::byte* allocate(std::size_t bytes, Reach reach) override {
    const Current current(gpu_);
    note_taken();
    if (reach == Reach::kVisible) {
      void* data = nullptr;
      check(cuda_calls().host_allocate(&data, bytes, cuda::kHostPortable | cuda::kHostMapped),
            "taking memory of the host that it can write");
      std::memset(data, 0, bytes);
      return static_cast<std::byte*>(data);
    }
    cuda::Address address = 0;
    check(cuda_calls().allocate(&address, bytes), "taking memory");
    check(cuda_calls().set_async(address, 0, bytes, nullptr), "clearing memory");
    // Streams of their own do not wait for the default one.
    check(cuda_calls().stream_synchronize(nullptr), "clearing memory");
    return cuda::pointer_to(address);
  }

  // Both wait for the work that uses it.
  void release(std::byte* data, std::size_t /*bytes*/, Reach reach) noexcept override {
    try {
      const Current current(gpu_);
      cuda_calls().context_synchronize();
      if (reach == Reach::kVisible) {
        cuda_calls().host_free(data);
      } else {
        cuda_calls().free(cuda::address_of(data));
      }
    } catch (const Error&) {  // the GPU is lost, and its memory with it
    }
  }

  std::vector<FileDescriptor> offer(const Parts& parts) override {
    note_taken();
    std::vector<FileDescriptor> offers;
    for (const Block& block : parts.blocks) {
      TRIREME_ASSERT(block.bytes % page_bytes_ == 0,
                     "shared memory of {} comes in pages of {} bytes, but {} bytes were asked for",
                     {device_name(gpu_.device()), page_bytes_, block.bytes});
      if (block.maker == parts.rank) {
        offers.push_back(cuda::create_shared(gpu_, block.bytes));
      }
    }
    return offers;
  }

  std::shared_ptr<Mapping> map(const Parts& parts,
                               std::span<const FileDescriptor> offers) override {
    return std::make_shared<cuda::CudaMapping>(gpu_, parts, offers);
  }

 private:
  cuda::Gpu gpu_;
  cuda::CudaStream stream_;
  std::size_t page_bytes_;
};

cuda::DeviceHandle device_handle(int index) {
  cuda::DeviceHandle handle = 0;
  check(cuda_calls().device_get(&handle, index), "finding a GPU");
  return handle;
}

GpuFacts facts_of(int index) {
  const cuda::DeviceHandle handle = device_handle(index);
  const auto attribute = [&](int which) {
    int value = 0;
    check(cuda_calls().device_attribute(&value, which, handle), "asking a GPU what it can do");
    return value;
  };
  char name[128] = {};
  check(cuda_calls().device_name(name, sizeof(name), handle), "asking a GPU for its name");
  std::size_t bytes = 0;
  check(cuda_calls().device_memory(&bytes, handle), "asking a GPU for its memory");
  return {.name = name,
          .identity = cuda::uuid_of(handle),
          .memory_bytes = bytes,
          .architecture = attribute(cuda::kMajor) * 10 + attribute(cuda::kMinor),
          .processors = attribute(cuda::kProcessors),
          .shares_memory = attribute(cuda::kHasDescriptors) != 0};
}

}  // namespace

void use_cuda(Device device) {
  TRIREME_ASSERT(device.type == DeviceType::kCuda, "not a GPU: ", device_name(device));
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (find_driver(device) == nullptr) {
    install(device, std::make_shared<CudaDriver>(device.index));
  }
}

GpuReport examine_gpus() {
  GpuReport report{.has_driver = cuda::has_driver()};
  try {
    int version = 0;
    check(cuda_calls().driver_version(&version), "asking the driver for its version");
    report.driver = detail::concat("{}.{}", {version / 1000, version % 1000 / 10});
    int count = 0;
    check(cuda_calls().device_count(&count), "counting the GPUs");
    for (int index = 0; index < count; ++index) {
      report.gpus.push_back(facts_of(index));
    }
  } catch (const Error& error) {
    report.why_none = error.what();
  }
  try {
    report.compiler = cuda::KernelCompiler::instance().version();
  } catch (const Error& error) {
    report.why_no_compiler = error.what();
  }
  return report;
}

}  // namespace trireme::device
