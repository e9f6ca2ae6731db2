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

}  // namespace

Steps aggregated_reduction(NetCall& call, AllAnnounced& announced) {
  const Operation& op = call.operation();
  const std::size_t element = call.element();
  const std::size_t output_element =
      op.kind == OpKind::kReduceScatter ? dtype_bytes(op.output.dtype()) : element;
  const int rank = call.rank();
  const int hub = aggregator_of(op);
  Channel& channel = call.channel();
  const Pieces pieces({0, op.total}, element);
  const auto bytes_of = [&](std::size_t piece) {
    return static_cast<std::size_t>(pieces[piece].size()) * element;
  };
  const bool scatters = op.kind == OpKind::kReduceScatter;
  if (rank != hub) {
    RequestSet requests(channel);
    for (std::size_t piece = 0; piece < pieces.count(); ++piece) {
      const auto offset = static_cast<std::size_t>(pieces[piece].begin) * element;
      requests.add(hub,
                   channel.send(hub, Stream::kData, op.input.bytes() + offset, bytes_of(piece)));
      if (op.kind == OpKind::kAllReduce) {
        requests.add(
            hub,
            channel.receive(hub, Stream::kResult, op.output.bytes() + offset, bytes_of(piece)));
      }
    }
    // What the accumulator of a sum holds is only here: it goes along, and the sum comes back.
    const std::size_t own = static_cast<std::size_t>(op.output.numel()) * output_element;
    if (scatters) {
      if (op.terms.accumulate) {
        requests.add(hub, channel.send(hub, Stream::kData, op.output.bytes(), own));
      }
      co_await announced;
      co_await Completed(requests);
      RequestSet result(channel);
      result.add(hub, channel.receive(hub, Stream::kResult, op.output.bytes(), own));
      co_await Completed(result);
      co_return;
    }
    co_await announced;
    co_await Completed(requests);
    co_return;
  }

  co_await announced;
  const auto peers = static_cast<std::size_t>(call.size() - 1);
  const std::size_t slot = static_cast<std::size_t>(pieces.most_numel()) * element;
  const auto scratch = std::make_unique_for_overwrite<std::byte[]>(slot * peers);
  // Sums of a reduce_scatter are made here whole, then handed out.
  std::vector<std::byte> sums(scatters ? static_cast<std::size_t>(op.total) * output_element : 0);
  std::vector<const std::byte*> inputs(static_cast<std::size_t>(call.size()));
  RequestSet sends(channel);
  std::vector<std::vector<std::byte>> held;  // until they are sent
  if (scatters && op.terms.accumulate) {
    // Accumulators follow the data of each rank, so all of it has to be here first.
    std::vector<std::vector<std::byte>> whole(static_cast<std::size_t>(call.size()));
    RequestSet arriving(channel);
    for (int peer = 0; peer < call.size(); ++peer) {
      if (peer == rank) {
        inputs[static_cast<std::size_t>(peer)] = op.input.bytes();
        std::memcpy(sums.data() + static_cast<std::size_t>(call.begin(peer)) * output_element,
                    op.output.bytes(),
                    op.output.size_bytes());
        continue;
      }
      auto& memory = whole[static_cast<std::size_t>(peer)];
      memory.resize(static_cast<std::size_t>(op.total) * element);
      inputs[static_cast<std::size_t>(peer)] = memory.data();
      for (std::size_t piece = 0; piece < pieces.count(); ++piece) {
        arriving.add(
            peer,
            channel.receive(peer,
                            Stream::kData,
                            memory.data() + static_cast<std::size_t>(pieces[piece].begin) * element,
                            bytes_of(piece)));
      }
      arriving.add(
          peer,
          channel.receive(peer,
                          Stream::kData,
                          sums.data() + static_cast<std::size_t>(call.begin(peer)) * output_element,
                          static_cast<std::size_t>(call.count(peer)) * output_element));
    }
    co_await Completed(arriving);
    std::byte* output = sums.data();
    call.reduce({0, op.total}, inputs, std::span(&output, 1));
  } else {
    for (std::size_t piece = 0; piece < pieces.count(); ++piece) {
      RequestSet arriving(channel);
      const Range range = pieces[piece];
      const auto offset = static_cast<std::size_t>(range.begin) * element;
      std::size_t next = 0;
      for (int peer = 0; peer < call.size(); ++peer) {
        if (peer == rank) {
          inputs[static_cast<std::size_t>(peer)] = op.input.bytes() + offset;
          continue;
        }
        std::byte* place = scratch.get() + next++ * slot;
        inputs[static_cast<std::size_t>(peer)] = place;
        arriving.add(peer, channel.receive(peer, Stream::kData, place, bytes_of(piece)));
      }
      co_await Completed(arriving);
      std::byte* output = scatters
                              ? sums.data() + static_cast<std::size_t>(range.begin) * output_element
                              : op.output.bytes() + offset;
      call.reduce(range, inputs, std::span(&output, 1));
      if (op.kind == OpKind::kAllReduce) {
        for (int peer = 0; peer < call.size(); ++peer) {
          if (peer != rank) {
            sends.add(peer, channel.send(peer, Stream::kResult, output, bytes_of(piece)));
          }
        }
      }
    }
  }
  if (scatters) {
    for (int peer = 0; peer < call.size(); ++peer) {
      std::byte* part = sums.data() + static_cast<std::size_t>(call.begin(peer)) * output_element;
      const std::size_t bytes = static_cast<std::size_t>(call.count(peer)) * output_element;
      if (peer == rank) {
        std::memcpy(op.output.bytes(), part, bytes);
      } else {
        sends.add(peer, channel.send(peer, Stream::kResult, part, bytes));
      }
    }
  }
  co_await Completed(sends);
}

}  // namespace trireme::detail
