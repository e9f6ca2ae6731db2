#pragma once

#include <algorithm>
#include <array>

#include "device/driver.h"
#include "trireme/device/square_sum.h"
#include "trireme/optim/parameter_slice.h"

// For rules whose direction is not a formula of one element: its beginning and its end, and what is
// between them, on whichever device the slice is.

namespace trireme::detail {

inline device::Stream& stream_of(const ParameterSlice& slice) {
  return device::driver(slice.device).stream();
}
inline ConstSpan master_of(const ParameterSlice& slice) {
  return {slice.master, slice.numel, slice.dtype, {}, slice.device};
}

// The slice's gradient as the update sees it, to memory of the slice's dtype and length.
void transformed_gradient(const ParameterSlice& slice,
                          const GradientTransform& transform,
                          void* gradient);

// parameter = shrink * parameter - rate * direction.
void apply_direction(const ParameterSlice& slice,
                     const void* direction,
                     double shrink,
                     double rate);

// direction /= divisor, in its own precision.
void divide_direction(const Span& direction, double divisor);

// As SquareQuanta::of; where elements are not finite, every sum is NaN.
SquareQuanta quanta_or_nan(double largest, std::int64_t count);

// Calls visit(part, rooms) for the blocks of a slice, with memory for kRooms times a block's
// elements: blocks stay in the nearest cache of the host; a device has large ones. Results are
// added up in any order.
template <int kRooms, class Visit>
void for_blocks(const ParameterSlice& slice, const Visit& visit) {
  constexpr std::int64_t kNear = 2048;
  constexpr std::int64_t kFar = std::int64_t{1} << 24;
  const bool here = slice.device.is_host();
  alignas(64) std::byte near[kRooms * kNear * sizeof(double)];
  const std::int64_t block = here ? kNear : std::min(kFar, (slice.numel + 63) / 64 * 64);
  const Span memory = here ? Span(near, kRooms * block, slice.dtype)
                           : stream_of(slice).scratch(slice.dtype, kRooms * block);
  for (std::int64_t first = 0; first < slice.numel; first += block) {
    const ParameterSlice part = slice.part(first, std::min(block, slice.numel - first));
    std::array<Span, kRooms> rooms;
    for (int k = 0; k < kRooms; ++k) {
      rooms[static_cast<std::size_t>(k)] = {
          memory.part(k * block, 0).bytes(), part.numel, slice.dtype, {}, slice.device};
    }
    visit(part, rooms);
  }
}

}  // namespace trireme::detail
