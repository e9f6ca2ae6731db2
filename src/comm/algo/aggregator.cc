// One rank adds up for all: everyone sends it everything, and gets back what it needs. For a
// machine with a better network, or with processors to spare.

#include <cstring>
#include <vector>

#include "comm/algo/algorithms.h"
#include "comm/algo/pieces.h"

namespace trireme::detail {
namespace {

using Stream = Channel::Stream;

// The root of a reduction adds up itself; otherwise it is rank 0.
int aggregator_of(const Operation& op) {
  return op.kind == OpKind::kReduce ? op.root : 0;
}

// Whether a scattered sum may need what its output holds: as its first term, or where all ranks
// leave an element out, which stays as it is. Once all have announced what they leave out.
bool needs_outputs(const NetCall& call) {
  const Operation& op = call.operation();
  bool needs = op.terms.accumulate;
  for (int peer = 0; peer < call.size(); ++peer) {
    needs |= !call.absent(peer).empty();
  }
  return needs && op.kind == OpKind::kReduceScatter;
}

}  // namespace

Steps aggregated_reduction(NetCall& call, AllAnnounced& announced) {
  const Operation& op = call.operation();
  const bool scatters = op.kind == OpKind::kReduceScatter;
  const int rank = call.rank();
  const int hub = aggregator_of(op);
  Channel& channel = call.channel();
  const Pieces pieces({0, op.total}, call.element());
  if (rank != hub) {
    RequestSet requests(channel);
    for (std::size_t piece = 0; piece < pieces.count(); ++piece) {
      const Range range = pieces[piece];
      requests.send(hub, Stream::kData, op.input.part(range.begin, range.size()));
      if (op.kind == OpKind::kAllReduce) {
        requests.receive(hub, Stream::kResult, op.output.part(range.begin, range.size()));
      }
    }
    co_await announced;
    if (needs_outputs(call)) {  // it is only here: it goes along, and the sum comes back
      requests.send(hub, Stream::kData, op.output);
    }
    co_await Completed(requests);
    if (scatters) {
      RequestSet result(channel);
      result.receive(hub, Stream::kResult, op.output);
      co_await Completed(result);
    }
    co_return;
  }

  co_await announced;
  const auto peers = static_cast<std::size_t>(call.size() - 1);
  const std::size_t slot = static_cast<std::size_t>(pieces.most_numel()) * call.element();
  const auto scratch = std::make_unique_for_overwrite<std::byte[]>(slot * peers);
  // Sums of a reduce_scatter are made here whole, then handed out.
  std::vector<std::byte> memory(
      scatters ? static_cast<std::size_t>(op.total) * dtype_bytes(op.output.dtype()) : 0);
  const Span sums = scatters ? Span(memory.data(), op.total, op.output.dtype()) : op.output;
  const auto part = [&](int peer) { return sums.part(call.begin(peer), call.count(peer)); };
  std::vector<const std::byte*> inputs(static_cast<std::size_t>(call.size()));
  RequestSet sends(channel);
  if (needs_outputs(call)) {
    // Outputs follow the data of each rank, so all of it has to be here first.
    std::vector<std::vector<std::byte>> whole(static_cast<std::size_t>(call.size()));
    RequestSet arriving(channel);
    for (int peer = 0; peer < call.size(); ++peer) {
      if (peer == rank) {
        inputs[static_cast<std::size_t>(peer)] = op.input.bytes();
        std::memcpy(part(peer).bytes(), op.output.bytes(), op.output.size_bytes());
        continue;
      }
      auto& all = whole[static_cast<std::size_t>(peer)];
      all.resize(static_cast<std::size_t>(op.total) * call.element());
      inputs[static_cast<std::size_t>(peer)] = all.data();
      for (std::size_t piece = 0; piece < pieces.count(); ++piece) {
        const Range range = pieces[piece];
        arriving.receive(peer,
                         Stream::kData,
                         Span(all.data(), op.total, op.dtype).part(range.begin, range.size()));
      }
      arriving.receive(peer, Stream::kData, part(peer));
    }
    co_await Completed(arriving);
    std::byte* output = sums.bytes();
    call.reduce({0, op.total}, inputs, std::span(&output, 1));
  } else {
    for (std::size_t piece = 0; piece < pieces.count(); ++piece) {
      RequestSet arriving(channel);
      const Range range = pieces[piece];
      std::size_t next = 0;
      for (int peer = 0; peer < call.size(); ++peer) {
        if (peer == rank) {
          inputs[static_cast<std::size_t>(peer)] = op.input.part(range.begin, range.size()).bytes();
          continue;
        }
        std::byte* place = scratch.get() + next++ * slot;
        inputs[static_cast<std::size_t>(peer)] = place;
        arriving.receive(peer, Stream::kData, {place, range.size(), op.dtype});
      }
      co_await Completed(arriving);
      const Span result = sums.part(range.begin, range.size());
      std::byte* output = result.bytes();
      call.reduce(range, inputs, std::span(&output, 1));
      if (op.kind == OpKind::kAllReduce) {
        for (int peer = 0; peer < call.size(); ++peer) {
          if (peer != rank) {
            sends.send(peer, Stream::kResult, result);
          }
        }
      }
    }
  }
  for (int peer = 0; scatters && peer < call.size(); ++peer) {
    if (peer == rank) {
      std::memcpy(op.output.bytes(), part(peer).bytes(), part(peer).size_bytes());
    } else {
      sends.send(peer, Stream::kResult, part(peer));
    }
  }
  co_await Completed(sends);
}

}  // namespace trireme::detail
