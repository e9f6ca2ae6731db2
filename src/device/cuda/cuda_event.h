#pragma once

#include <memory>

#include "device/cuda/gpu.h"
#include "device/event.h"

namespace trireme::device::cuda {

// A moment in the work of a GPU's stream.
class CudaMoment final : public Event::Moment {
 public:
  CudaMoment(Gpu& gpu, NativeStream stream) : gpu_(gpu) {
    const Current current(gpu_);
    check(cuda_calls().event_create(&event_, kEventWithoutTime), "making an event");
    const Result recorded = cuda_calls().event_record(event_, stream);
    if (recorded != kSuccess) {
      cuda_calls().event_destroy(event_);
      check(recorded, "recording an event");
    }
  }
  // NOLINTNEXTLINE(bugprone-exception-escape): the driver is loaded, as there is one of these
  ~CudaMoment() override { cuda_calls().event_destroy(event_); }
  CudaMoment(const CudaMoment&) = delete;
  CudaMoment& operator=(const CudaMoment&) = delete;

  bool passed() override {
    const Result state = cuda_calls().event_query(event_);
    if (state == kNotReady) {
      return false;
    }
    check(state, "working on what was issued");
    return true;
  }
  NativeEvent native() const { return event_; }

 private:
  Gpu& gpu_;
  NativeEvent event_ = nullptr;
};

}  // namespace trireme::device::cuda
