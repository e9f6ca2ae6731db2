#pragma once

#include <ATen/core/Tensor.h>

#include "device/buffer.h"
#include "device/stream.h"
#include "trireme/core/span.h"
#include "trireme/shard/range.h"

// Runs of elements. The room says which, and leaves what is done with their bytes to a stream.

namespace trireme::detail {

// The elements of a dense tensor, in the order of its memory.
Span run_of(const at::Tensor& tensor);
ConstSpan const_run_of(const at::Tensor& tensor);

// The stream for work on both, one of which may be the host's.
device::Stream& stream_for(const ConstSpan& one, const ConstSpan& other = {});
// A run's elements on the host: where they are, or in a copy, which `put_back` writes back.
class OnHost {
 public:
  explicit OnHost(const Span& run);
  explicit OnHost(const ConstSpan& run);  // to be read
  const Span& run() const { return here_; }
  void put_back() const;

 private:
  Span original_;
  device::Buffer copy_;
  Span here_;
};

// What was issued on the device's default stream is done: nothing to wait for on the host.
void finish_work(Device device);

// Elements `range` of a run, kept alive by the same owner. A run of no elements may have no memory,
// in which there are no addresses either.
inline Span part_of(const Span& run, Range range) {
  return run.bytes() == nullptr ? run : run.part(range.begin, range.size());
}
inline ConstSpan part_of(const ConstSpan& run, Range range) {
  return run.bytes() == nullptr ? run : run.part(range.begin, range.size());
}

}  // namespace trireme::detail
