#pragma once

#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "device/buffer.h"
#include "device/cuda/cuda_driver.h"
#include "support/reference.h"
#include "trireme/core/deadline.h"

// For tests that need a GPU: skipped, with a reason, where there is none.

namespace trireme::testing {

inline constexpr Device kGpu{DeviceType::kCuda, 0};

// Why there is no GPU here; empty where there is one. Opens the driver: not in a process that forks
// ranks afterwards.
inline std::string why_no_gpu() {
  const device::GpuReport report = device::examine_gpus();
  return !report.gpus.empty()      ? report.why_no_compiler
         : report.why_none.empty() ? "the driver finds no GPU"
                                   : report.why_none;
}

class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string why = why_no_gpu();
    if (!why.empty()) {
      GTEST_SKIP() << "no GPU here: " << why;
    }
    device::use_cuda(kGpu);
  }
};

inline device::Stream& gpu_stream() {
  return device::driver(kGpu).stream();
}

inline void finish(device::Stream& stream) {
  ASSERT_TRUE(stream.record().wait(Deadline(std::chrono::minutes(1))));
}

// Bytes on the GPU, `shift` bytes behind where its memory is aligned.
class OnGpu {
 public:
  explicit OnGpu(const Bytes& bytes, std::size_t shift = 0)
      : shift_(shift), size_(bytes.size()), memory_(bytes.size() + shift + 1, kGpu) {
    if (!bytes.empty()) {
      gpu_stream().copy(span(Dtype::kUint8, static_cast<std::int64_t>(size_)),
                        {bytes.data(), static_cast<std::int64_t>(size_), Dtype::kUint8});
      finish(gpu_stream());  // `bytes` are the caller's again
    }
  }

  std::byte* data() const { return memory_.data() + shift_; }
  Span span(Dtype dtype, std::int64_t numel) const { return memory_.span(dtype, numel, shift_); }
  // What is there when all that was issued is done.
  Bytes read() const {
    Bytes bytes(size_);
    if (size_ > 0) {
      gpu_stream().copy({bytes.data(), static_cast<std::int64_t>(size_), Dtype::kUint8},
                        span(Dtype::kUint8, static_cast<std::int64_t>(size_)));
    }
    finish(gpu_stream());
    return bytes;
  }

 private:
  std::size_t shift_;
  std::size_t size_;
  device::Buffer memory_;
};

template <class T>
Bytes bytes_of(const std::vector<T>& values) {
  Bytes bytes(values.size() * sizeof(T));
  if (!bytes.empty()) {
    std::memcpy(bytes.data(), values.data(), bytes.size());
  }
  return bytes;
}

}  // namespace trireme::testing
