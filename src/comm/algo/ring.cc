// Around a ring: every rank talks to its two neighbours only. A gather keeps everything as it is; a
// sum begins at another rank for every part, so its order is not the one of the others: only for
// jobs that ask for it.

#include <cstring>

#include "comm/algo/algorithms.h"
#include "comm/algo/pieces.h"
#include "device/stream.h"

namespace trireme::detail {
namespace {

using Stream = Channel::Stream;

}  // namespace

Steps ring_all_gather(NetCall& call, AllAnnounced& announced) {
  co_await announced;
  const Operation& op = call.operation();
  const std::size_t element = call.element();
  const int size = call.size();
  Channel& channel = call.channel();
  const int right = (call.rank() + 1) % size;
  const int left = (call.rank() + size - 1) % size;
  const auto part = [&](int rank) {
    return op.output.bytes() + static_cast<std::size_t>(call.begin(rank)) * element;
  };
  const auto bytes_of = [&](int rank) {
    return static_cast<std::size_t>(call.count(rank)) * element;
  };
  if (part(call.rank()) != op.input.bytes() && op.input.size_bytes() > 0) {
    std::memmove(part(call.rank()), op.input.bytes(), op.input.size_bytes());
  }
  RequestSet sends(channel);
  for (int step = 0; step + 1 < size; ++step) {
    const int going = (call.rank() + size - step) % size;
    const int coming = (call.rank() + size - step - 1) % size;
    RequestSet arriving(channel);
    arriving.add(left, channel.receive(left, Stream::kData, part(coming), bytes_of(coming)));
    sends.add(right, channel.send(right, Stream::kData, part(going), bytes_of(going)));
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
  const auto input = [&](int c) {
    return op.input.bytes() + static_cast<std::size_t>(call.begin(c)) * element;
  };
  const auto bytes_of = [&](int c) { return static_cast<std::size_t>(call.count(c)) * element; };
  const auto combine = [&](const std::byte* partial, int c, std::byte* to, bool last) {
    const device::Term terms[] = {{partial}, {input(c)}};
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
  std::byte* own =
      op.kind == OpKind::kReduceScatter
          ? op.output.bytes()
          : (op.output.numel() > 0
                 ? op.output.bytes() + static_cast<std::size_t>(call.begin(rank)) * element
                 : nullptr);
  for (int step = 0; step + 1 < size; ++step) {
    // Sends the part that has this rank's term by now, receives the one before it in the ring.
    const int going = (rank + size - 1 - step) % size;
    const int coming = (rank + 2 * size - 2 - step) % size;
    RequestSet requests(channel);
    const std::byte* source = step == 0 ? input(going) : scratch.get() + ((step - 1) % 2) * slot;
    std::byte* target = scratch.get() + (step % 2) * slot;
    requests.add(left, channel.receive(left, Stream::kData, target, bytes_of(coming)));
    requests.add(right, channel.send(right, Stream::kData, source, bytes_of(going)));
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
          requests.add(peer,
                       channel.receive(
                           peer,
                           Stream::kResult,
                           op.output.bytes() + static_cast<std::size_t>(call.begin(peer)) * element,
                           bytes_of(peer)));
        }
      }
    } else {
      requests.add(op.root, channel.send(op.root, Stream::kResult, finished, bytes_of(rank)));
    }
    co_await Completed(requests);
    co_return;
  }
  for (int step = 0; step + 1 < size; ++step) {
    const int going = (rank + size - step) % size;
    const int coming = (rank + size - step - 1) % size;
    RequestSet round(channel);
    const auto part = [&](int c) {
      return op.output.bytes() + static_cast<std::size_t>(call.begin(c)) * element;
    };
    round.add(left, channel.receive(left, Stream::kResult, part(coming), bytes_of(coming)));
    round.add(right, channel.send(right, Stream::kResult, part(going), bytes_of(going)));
    co_await Completed(round);
  }
}

}  // namespace trireme::detail
