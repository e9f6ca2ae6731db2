// Collectives on memory of a GPU, which is in SharedBuffers of that device.

#include "comm/order/matching.h"
#include "comm/queue/has_passed.h"
#include "comm/shm/collectives.h"
#include "comm/shm/conditions.h"
#include "device/driver.h"
#include "trireme/core/index.h"

namespace trireme::detail {

// Note [collectives on a device]
// What was issued on the device's default stream before the call, backward's work, comes first: an
// event in that stream marks its end. Everything here is on a stream of its own, and no kernel
// waits for a peer: a rank passes a phase when its own work is done, and the queue looks for that
// where it looks at its peers. So a rank that dies is found as on the host.
//
// A rank writes its own memory alone, since it sees that of others through a mapping for reading.
// So an all_reduce goes in two steps: each rank sums its own chunk where that is, then fetches
// those of the others. Nobody reads a chunk of somebody else's memory in one of the steps that is
// written in it.
Steps Collectives::run_on_device(const Call& call) {
  device::Driver& driver = device::driver(call.operation.device);
  if (stream_ == nullptr || stream_->device() != call.operation.device) {
    stream_ = driver.make_stream();
  }
  return steps_on_device(call, driver.stream().record());
}

Steps Collectives::steps_on_device(const Call& call, device::Event issued) {
  co_await AllIssued(endpoint_, call);
  const Operation& op = call.operation;
  if (op.total == 0) {
    co_return;
  }
  co_await HasPassed(endpoint_.rank(), std::move(issued));
  pass_phase();
  co_await AllAtPhase(endpoint_, phase_);  // everybody's input is there
  if (reduces(op.kind)) {
    reduce_on_device(call);
    co_await HasPassed(endpoint_.rank(), stream_->record());
    pass_phase();
    co_await AllAtPhase(endpoint_, phase_);  // everybody's chunk is summed
  }
  if (op.kind != OpKind::kReduceScatter) {
    pull_on_device(call);
    co_await HasPassed(endpoint_.rank(), stream_->record());
    pass_phase();
    co_await AllAtPhase(endpoint_, phase_);  // nobody reads any more
  }
}

void Collectives::reduce_on_device(const Call& call) const {
  const Operation& op = call.operation;
  const auto first = static_cast<std::size_t>(sum_before(op.counts.data(), endpoint_.rank()));
  const std::size_t offset = first * dtype_bytes(op.dtype);
  std::vector<const std::byte*> inputs;
  inputs.reserve(index(endpoint_.size()));
  for (int peer = 0; peer < endpoint_.size(); ++peer) {
    inputs.push_back(readable_input(call, peer) + offset);
  }
  reduce_chunk(call,
               first,
               static_cast<std::size_t>(op.counts[index(endpoint_.rank())]),
               inputs,
               {op.output.bytes() + (op.kind == OpKind::kAllReduce ? offset : 0)});
}

// Of an all_reduce the sums of the others, else what they contribute.
void Collectives::pull_on_device(const Call& call) const {
  const Operation& op = call.operation;
  const auto pull = [&](int peer, std::int64_t source, std::int64_t target, std::int64_t count) {
    if (count > 0) {
      const ConstSpan theirs(readable_input(call, peer), source + count, op.dtype, {}, op.device);
      stream_->copy(op.output.part(target, count), theirs.part(source, count));
    }
  };
  if (op.kind == OpKind::kBroadcast) {
    if (endpoint_.rank() != op.root) {
      pull(op.root, 0, 0, op.total);
    }
    return;
  }
  for (int peer = 0; peer < endpoint_.size(); ++peer) {
    const std::int64_t first = sum_before(op.counts.data(), peer);
    const bool sums = op.kind == OpKind::kAllReduce;
    if (!sums || peer != endpoint_.rank()) {
      pull(peer, sums ? first : 0, first, op.counts[index(peer)]);
    }
  }
}

}  // namespace trireme::detail
