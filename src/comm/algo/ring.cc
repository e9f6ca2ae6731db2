// Around a ring: every rank talks to its two neighbours only. A gather keeps everything as it is; a
// sum begins at another rank for every part, so its order is not the one of the others: only for
// jobs that ask for it.

#include "comm/algo/algorithms.h"
#include "comm/algo/pieces.h"
#include "comm/order/copy_bytes.h"
#include "device/stream.h"

namespace trireme::detail {
namespace {

using Stream = Channel::Stream;

}  // namespace

Steps ring_all_gather(NetCall& call, AllAnnounced& announced) {
  co_await announced;
  const Operation& op = call.operation();
  const int size = call.size();
  const int right = (call.rank() + 1) % size;
  const int left = (call.rank() + size - 1) % size;
  copy_bytes(call.part(call.rank()).bytes(), op.input.bytes(), op.input.size_bytes());
  RequestSet sends(call.channel());
  for (int step = 0; step + 1 < size; ++step) {
    RequestSet arriving(call.channel());
    arriving.receive(left, Stream::kData, call.part((call.rank() + size - step - 1) % size));
    sends.send(right, Stream::kData, call.part((call.rank() + size - step) % size));
    co_await Completed(arriving);
  }
  co_await Completed(sends);
}

// Part c travels from rank c + 1 around to rank c, and grows by one term at each.
Steps ring_reduction(NetCall& call, AllAnnounced& announced) {
  co_await announced;
  for (int peer = 0; peer < call.size(); ++peer) {
    if (!call.absent(peer).empty()) {  // a growing sum has no place for what is left out
      Part direct(direct_reduction(call, announced));
      co_await direct;
      co_return;
    }
  }
  const Operation& op = call.operation();
  const std::size_t element = call.element();
  const int size = call.size();
  const int rank = call.rank();
  Channel& channel = call.channel();
  const int right = (rank + 1) % size;
  const int left = (rank + size - 1) % size;
  std::int64_t longest = 0;
  for (int c = 0; c < size; ++c) {
    longest = std::max(longest, call.count(c));
  }
  const std::size_t slot = static_cast<std::size_t>(longest) * element;
  const auto scratch = std::make_unique_for_overwrite<std::byte[]>(2 * slot);
  const auto input = [&](int c) { return op.input.part(call.begin(c), call.count(c)); };
  const auto combine = [&](const std::byte* partial, int c, std::byte* to, bool last) {
    const device::Term terms[] = {{partial}, {input(c).bytes()}};
    const bool average = op.reduce == ReduceOp::kAverage;
    device::host().reduce({.dtype = op.dtype,
                           .output_dtype = op.dtype,
                           .op = average && !last ? ReduceOp::kSum : op.reduce,
                           .divisor = size,
                           .range = {0, call.count(c)},
                           .terms = terms,
                           .outputs = std::span(&to, 1)});
  };
  std::byte* finished = nullptr;
  if (size == 1) {
    Part direct(direct_reduction(call, announced));
    co_await direct;
    co_return;
  }
  std::byte* own = op.kind == OpKind::kReduceScatter ? op.output.bytes()
                   : op.output.numel() > 0           ? call.part(rank).bytes()
                                                     : nullptr;
  for (int step = 0; step + 1 < size; ++step) {
    // Sends the part that has this rank's term by now, receives the one before it in the ring.
    const int going = (rank + size - 1 - step) % size;
    const int coming = (rank + 2 * size - 2 - step) % size;
    RequestSet requests(channel);
    const ConstSpan sums(scratch.get() + ((step + 1) % 2) * slot, call.count(going), op.dtype);
    std::byte* target = scratch.get() + (step % 2) * slot;
    requests.receive(left, Stream::kData, {target, call.count(coming), op.dtype});
    requests.send(right, Stream::kData, step == 0 ? input(going) : sums);
    co_await Completed(requests);
    const bool last = step + 2 == size;
    finished = last && own != nullptr ? own : target;
    combine(target, coming, finished, last);
  }
  if (op.kind == OpKind::kReduceScatter) {
    co_return;
  }
  RequestSet requests(channel);
  if (op.kind == OpKind::kReduce) {
    if (rank == op.root) {
      for (int peer = 0; peer < size; ++peer) {
        if (peer != rank) {
          requests.receive(peer, Stream::kResult, call.part(peer));
        }
      }
    } else {
      requests.send(op.root, Stream::kResult, {finished, call.count(rank), op.dtype});
    }
    co_await Completed(requests);
    co_return;
  }
  for (int step = 0; step + 1 < size; ++step) {
    RequestSet round(channel);
    round.receive(left, Stream::kResult, call.part((rank + size - step - 1) % size));
    round.send(right, Stream::kResult, call.part((rank + size - step) % size));
    co_await Completed(round);
  }
}

}  // namespace trireme::detail
