#include "device/host/host_stream.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "device/host/copy_kernels.h"
#include "device/host/product_kernels.h"
#include "device/host/reduce_kernels.h"
#include "device/host/square_kernels.h"
#include "trireme/core/error.h"

namespace trireme::device {
namespace {

void check_here(const ConstSpan& data) {
  TRIREME_ASSERT(
      data.device().is_host(), "the host cannot work on memory of ", device_name(data.device()));
}

std::size_t count_of(const ConstSpan& data) {
  return static_cast<std::size_t>(data.numel());
}

// 16-bit floats in, float32 out.
void widen(Dtype from_dtype, const std::byte* from, std::byte* to, std::size_t numel) {
  reduce({.dtype = from_dtype,
          .op = ReduceOp::kSum,
          .divisor = 1,
          .inputs = std::span(&from, 1),
          .outputs = std::span(&to, 1),
          .numel = numel,
          .widen = true});
}

void convert(const Span& to, const ConstSpan& from) {
  if (is_half(from.dtype()) && to.dtype() == Dtype::kFloat32) {
    widen(from.dtype(), from.bytes(), to.bytes(), count_of(from));
    return;
  }
  TRIREME_ASSERT(from.dtype() == Dtype::kFloat32 && is_half(to.dtype()),
                 "a copy cannot make {} of {}",
                 {dtype_name(to.dtype()), dtype_name(from.dtype())});
  round_floats(
      to.dtype(), reinterpret_cast<const float*>(from.bytes()), to.bytes(), count_of(from));
}

void check_exact(Dtype dtype) {
  TRIREME_CHECK(dtype == Dtype::kFloat32 || dtype == Dtype::kFloat64,
                "norms are computed for float32 and float64, found ",
                dtype_name(dtype));
}

}  // namespace

void HostStream::wait(const Event& event) {
  // Of another device: nothing here can be done later, so this thread waits.
  TRIREME_ASSERT(event.wait(Deadline(kForever)), "the work of a device has not ended in a year");
}

Span HostStream::scratch(Dtype dtype, std::int64_t numel) {
  const auto memory = std::make_shared_for_overwrite<std::byte[]>(static_cast<std::size_t>(numel) *
                                                                  dtype_bytes(dtype));
  return {memory.get(), numel, dtype, memory};
}

void HostStream::clear(const Span& data) {
  check_here(data);
  if (data.numel() > 0) {
    std::memset(data.bytes(), 0, data.size_bytes());
  }
}

void HostStream::copy(const Span& to, const ConstSpan& from, NotFinite* not_finite) {
  check_here(to);
  check_here(from);
  TRIREME_ASSERT(to.numel() == from.numel(),
                 "a copy of {} elements has {} to go to",
                 {from.numel(), to.numel()});
  const bool looks = not_finite != nullptr && is_float(from.dtype());
  const bool moves = to.bytes() != from.bytes();
  if (from.numel() == 0) {
    return;  // of which there may be no memory
  }
  if (looks && moves && to.dtype() == from.dtype()) {
    *not_finite |= copy_finite(to.dtype(), to.bytes(), from.bytes(), from.numel()) ? 0U : 1U;
    return;
  }
  if (looks) {
    check_finite(from, not_finite);
  }
  if (to.dtype() != from.dtype()) {
    convert(to, from);
  } else if (moves) {
    std::memcpy(to.bytes(), from.bytes(), from.size_bytes());
  }
}

void HostStream::check_finite(const ConstSpan& data, NotFinite* not_finite) {
  check_here(data);
  if (is_float(data.dtype())) {
    *not_finite |= all_finite(data.dtype(), data.bytes(), data.numel()) ? 0U : 1U;
  }
}

void HostStream::add_rows(const RowSums& rows) {
  for (std::size_t i = 0; i < rows.rows.size(); ++i) {
    const std::int64_t first = rows.rows[i] * rows.width;
    const Range part = intersection({first, first + rows.width}, rows.range);
    if (part.empty()) {
      continue;
    }
    const std::int64_t value = static_cast<std::int64_t>(i) * rows.width + part.begin - first;
    const Term term{rows.values.bytes() +
                    static_cast<std::size_t>(value) * dtype_bytes(rows.values.dtype())};
    std::byte* const sum =
        rows.sums.bytes() +
        static_cast<std::size_t>(part.begin - rows.range.begin) * dtype_bytes(rows.sums.dtype());
    const Term old{sum};
    reduce({.dtype = rows.values.dtype(),
            .output_dtype = rows.sums.dtype(),
            .range = part,
            .terms = std::span(&term, 1),
            .accumulator = &old,
            .outputs = std::span(&sum, 1)});
  }
}

void HostStream::largest(const ConstSpan& data, const Scaling& scaling, double* largest) {
  check_here(data);
  check_exact(data.dtype());
  *largest = std::max(*largest, largest_magnitude(data, scaling));
}

void HostStream::squares(const ConstSpan& data,
                         const SquareQuanta& quanta,
                         const Scaling& scaling,
                         SquareSum* sum) {
  check_here(data);
  check_exact(data.dtype());
  sum->add(sum_squares(data, quanta, scaling));
}

void HostStream::update(const UpdateRule& rule, const UpdateArrays& arrays) {
  rule.on_host(rule.constants, arrays);
}

void HostStream::multiply(const Product& product) {
  TRIREME_ASSERT(product.dtype == Dtype::kFloat32 || product.dtype == Dtype::kFloat64,
                 "matrices are multiplied in float32 or float64, found ",
                 dtype_name(product.dtype));
  multiply_matrices(product);
}

void HostStream::run(const BlockKernel& kernel) {
  kernel.on_host(kernel.arguments);
}

}  // namespace trireme::device
