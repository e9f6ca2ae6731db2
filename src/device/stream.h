#pragma once

#include <cstddef>
#include <cstdint>

#include "device/event.h"
#include "device/kernel.h"
#include "device/product.h"
#include "device/sum_chain.h"
#include "device/update.h"
#include "trireme/core/span.h"
#include "trireme/device/square_sum.h"

namespace trireme::device {

// Becomes 1 where an element is infinite or not a number; nobody makes it 0 but its owner.
using NotFinite = std::uint32_t;

// Work on one device, done in the order in which it is issued. Calls are for whole buffers; each
// returns when its work has been issued, and the work is done when an event that is recorded later
// has passed. Until then its memory belongs to it: spans keep theirs alive by their owner, the
// rest is the caller's. The host's stream works at once, on the thread that calls; it has no state,
// and any number of threads may use it. Other streams belong to one thread at a time.
//
// Results that the host looks at (flags, magnitudes, sums) are added to what is there, in memory
// of Buffer::visible_to(device), and may be read when the event has passed.
//
//   device::Stream& stream = device::driver(gradient.device()).stream();
//   stream.copy(bucket, gradient, &flag);           // after backward's own work on this stream
//   const device::Event filled = stream.record();
//   ...                                             // the communicator starts when it has passed
//   stream.wait(summed);                            // what follows reads the sums
//   stream.squares(sums, quanta, scaling, &sum);
class Stream {
 public:
  virtual ~Stream() = default;
  virtual Device device() const = 0;

  // --- order

  virtual Event record() = 0;
  // What is issued from now on begins when `event`, of any stream, has passed.
  virtual void wait(const Event& event) = 0;

  // --- memory

  // Memory of this device, with anything in it, for work that is issued while its owner lives:
  // taken and given back in the order of the work, so nobody waits. The owner goes before the
  // stream.
  virtual Span scratch(Dtype dtype, std::int64_t numel) = 0;
  // `data` becomes zeros.
  virtual void clear(const Span& data) = 0;
  // As many elements from one place to another (or to the same; nothing between): one of them may
  // be the host's. Floats may change their type between float32 and 16 bits, rounded to nearest.
  // With `not_finite`, looks at what it copies.
  virtual void copy(const Span& to, const ConstSpan& from, NotFinite* not_finite = nullptr) = 0;
  virtual void check_finite(const ConstSpan& data, NotFinite* not_finite) = 0;

  // --- sums

  virtual void reduce(const SumChain& chain) = 0;
  virtual void add_rows(const RowSums& rows) = 0;

  // --- norms (trireme/device/square_sum.h), of float32 and float64

  // `largest` becomes at least the largest magnitude; infinity where an element is not finite.
  virtual void largest(const ConstSpan& data, const Scaling& scaling, double* largest) = 0;
  virtual void squares(const ConstSpan& data,
                       const SquareQuanta& quanta,
                       const Scaling& scaling,
                       SquareSum* sum) = 0;

  // --- updates

  // One pass of the rule over the arrays, which are this device's.
  virtual void update(const UpdateRule& rule, const UpdateArrays& arrays) = 0;

  // --- matrices

  virtual void multiply(const Product& product) = 0;

  // --- what a room has written itself (device/kernel.h)

  virtual void run(const BlockKernel& kernel) = 0;

  // sums += terms, in the precision of the sums: a link of the chain that `reduce` makes. Where
  // they are its `first`, sums = terms.
  void add(const Span& sums, const ConstSpan& terms, bool first = false);
};

// The host's.
Stream& host();

}  // namespace trireme::device
