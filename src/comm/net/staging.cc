#include "comm/net/staging.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "comm/algo/channel.h"
#include "comm/order/matching.h"
#include "comm/queue/has_passed.h"
#include "device/driver.h"
#include "trireme/core/error.h"
#include "trireme/core/index.h"

namespace trireme::detail {

bool Staging::is_for(const Operation& op) {
  return !op.device.is_host() && op.kind != OpKind::kAllocate;
}

Steps Staging::run(int rank, const Call& call, Start start) {
  device::Driver& driver = device::driver(call.operation.device);
  if (stream_ == nullptr || stream_->device() != call.operation.device) {
    stream_ = driver.make_stream();
  }
  return run_after(rank, call, driver.stream().record(), std::move(start));
}

Steps Staging::run_after(int rank, const Call& call, device::Event issued, Start start) {
  const Operation& op = call.operation;
  Call staged{.operation = op, .number = call.number};
  Operation& host = staged.operation;
  host.device = {};
  const bool gathers = op.kind == OpKind::kAllGather;
  // Of a gather the whole has room for the own part; what is both read and written is one copy.
  const bool in_place = op.kind == OpKind::kAllReduce || op.kind == OpKind::kBroadcast;
  host.output = take(op.device, op.output.dtype(), op.output.numel());
  if (gathers) {
    host.input = host.output.part(sum_before(op.counts.data(), rank), op.counts[index(rank)]);
  } else if (in_place) {
    host.input = op.input.numel() > 0 ? ConstSpan(host.output) : ConstSpan(nullptr, 0, op.dtype);
  } else {
    host.input = take(op.device, op.input.dtype(), op.input.numel());
  }

  co_await HasPassed(rank, std::move(issued));
  const auto fetch = [&](const ConstSpan& to, const ConstSpan& from) {
    if (from.numel() > 0) {
      const Span place(
          const_cast<std::byte*>(to.bytes()), to.numel(), to.dtype(), to.owner(), to.device());
      stream_->copy(place, from);
    }
  };
  fetch(host.input, op.input);
  if (op.terms.accumulate) {
    fetch(host.output, op.output);
  }
  co_await HasPassed(rank, stream_->record());
  co_await Part(start(staged));
  const bool has_it = op.kind == OpKind::kBroadcast && op.input.numel() > 0;
  if (op.output.numel() > 0 && !has_it) {
    stream_->copy(op.output, host.output);
  }
  co_await HasPassed(rank, stream_->record());
}

Span Staging::take(Device device, Dtype dtype, std::int64_t numel) {
  if (numel == 0) {
    return {nullptr, 0, dtype};
  }
  const std::size_t bytes = static_cast<std::size_t>(numel) * dtype_bytes(dtype);
  // Of one use, the spans' own, there is none left where nobody uses it.
  const auto spare = std::ranges::find_if(kept_, [&](const auto& buffer) {
    return buffer.use_count() == 1 && buffer->size_bytes() >= bytes;
  });
  std::shared_ptr<device::Buffer> buffer;
  if (spare != kept_.end()) {
    buffer = *spare;
  } else {
    // What has become too small is not kept beside what takes its place.
    std::erase_if(kept_, [](const auto& old) { return old.use_count() == 1; });
    buffer =
        std::make_shared<device::Buffer>(device::Buffer::visible_to(device, std::bit_ceil(bytes)));
    kept_.push_back(buffer);
  }
  return {buffer->data(), numel, dtype, buffer};
}

}  // namespace trireme::detail
