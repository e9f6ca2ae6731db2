// Every rank with every other. A reduction costs the same bytes as a ring, and whoever owns an
// element has all its terms and adds them up in rank order.

#include <vector>

#include "comm/algo/algorithms.h"
#include "comm/algo/pieces.h"
#include "comm/order/copy_bytes.h"
#include "trireme/core/index.h"

namespace trireme::detail {
namespace {

using Stream = Channel::Stream;

}  // namespace

Steps direct_all_gather(NetCall& call, AllAnnounced& announced) {
  const Operation& op = call.operation();
  const std::size_t element = call.element();
  Channel& channel = call.channel();
  RequestSet requests(channel);
  const auto bytes_of = [&](int rank) {
    return static_cast<std::size_t>(call.count(rank)) * element;
  };
  for (int step = 1; step < call.size(); ++step) {
    const int peer = (call.rank() + step) % call.size();
    if (!call.is_eager(bytes_of(peer))) {
      std::byte* part = op.output.bytes() + static_cast<std::size_t>(call.begin(peer)) * element;
      requests.add(peer, channel.receive(peer, Stream::kData, part, bytes_of(peer)));
    }
  }
  if (!call.is_eager(op.input.size_bytes())) {
    for (int step = 1; step < call.size(); ++step) {
      const int peer = (call.rank() + step) % call.size();
      requests.add(peer,
                   channel.send(peer, Stream::kData, op.input.bytes(), op.input.size_bytes()));
    }
    std::byte* own =
        op.output.bytes() + static_cast<std::size_t>(call.begin(call.rank())) * element;
    copy_bytes(own, op.input.bytes(), op.input.size_bytes());
  }
  co_await announced;
  finish_from_announcements(call);
  co_await Completed(requests);
}

Steps direct_reduction(NetCall& call, AllAnnounced& announced) {
  const Operation& op = call.operation();
  const std::size_t element = call.element();
  const int rank = call.rank();
  Channel& channel = call.channel();
  const bool to_all = op.kind == OpKind::kAllReduce;
  const bool takes_results = to_all || (op.kind == OpKind::kReduce && rank == op.root);
  // Scratch memory is for pieces of all the others.
  const std::size_t piece_bytes =
      std::max<std::size_t>(64 << 10, kPieceBytes / std::max(1, (call.size() - 1) / 4));
  const auto pieces_of = [&](int peer) {
    return Pieces({call.begin(peer), call.begin(peer) + call.count(peer)}, element, piece_bytes);
  };
  RequestSet sends(channel);
  RequestSet results(channel);

  const Pieces own = pieces_of(rank);
  const std::size_t slot_bytes = static_cast<std::size_t>(own.most_numel()) * element;
  const std::size_t slots = std::min(own.count(), kPiecesAhead);
  const std::size_t peers = index(call.size()) - 1;
  const auto scratch = std::make_unique_for_overwrite<std::byte[]>(slot_bytes * slots * peers);
  const auto place = [&](std::size_t piece, int step) {
    return scratch.get() + ((piece % slots) * peers + index(step - 1)) * slot_bytes;
  };
  std::vector<RequestSet> arriving = request_sets(channel, slots);
  const auto expect = [&](std::size_t piece) {
    for (int step = 1; step < call.size(); ++step) {
      const int peer = (rank + step) % call.size();
      arriving[piece % slots].add(
          peer,
          channel.receive(peer,
                          Stream::kData,
                          place(piece, step),
                          static_cast<std::size_t>(own[piece].size()) * element));
    }
  };
  for (std::size_t piece = 0; piece < slots; ++piece) {
    expect(piece);
  }
  for (int step = 1; step < call.size(); ++step) {
    const int peer = (rank + step) % call.size();
    const Pieces theirs = pieces_of(peer);
    for (std::size_t piece = 0; piece < theirs.count(); ++piece) {
      const Range range = theirs[piece];
      sends.add(peer,
                channel.send(peer,
                             Stream::kData,
                             op.input.bytes() + static_cast<std::size_t>(range.begin) * element,
                             static_cast<std::size_t>(range.size()) * element));
      if (takes_results) {
        // Into the place of what was sent: the result can only come when that has arrived.
        results.add(
            peer,
            channel.receive(peer,
                            Stream::kResult,
                            op.output.bytes() + static_cast<std::size_t>(range.begin) * element,
                            static_cast<std::size_t>(range.size()) * element));
      }
    }
  }
  co_await announced;

  std::vector<const std::byte*> inputs(index(call.size()));
  std::vector<std::byte> result;  // where this rank makes it for the root alone
  if (op.kind == OpKind::kReduce && rank != op.root) {
    result.resize(static_cast<std::size_t>(call.count(rank)) * element);
  }
  for (std::size_t piece = 0; piece < own.count(); ++piece) {
    co_await Completed(arriving[piece % slots]);
    const Range range = own[piece];
    for (int step = 1; step < call.size(); ++step) {
      inputs[index((rank + step) % call.size())] = place(piece, step);
    }
    inputs[index(rank)] = op.input.bytes() + static_cast<std::size_t>(range.begin) * element;
    const auto offset = static_cast<std::size_t>(range.begin - call.begin(rank));
    std::byte* output = nullptr;
    if (op.kind == OpKind::kReduceScatter) {
      output = op.output.bytes() + offset * dtype_bytes(op.output.dtype());
    } else if (!result.empty()) {
      output = result.data() + offset * element;
    } else {
      output = op.output.bytes() + static_cast<std::size_t>(range.begin) * element;
    }
    call.reduce(range, inputs, std::span(&output, 1));
    const std::size_t bytes = static_cast<std::size_t>(range.size()) * element;
    if (to_all) {
      for (int step = 1; step < call.size(); ++step) {
        const int peer = (rank + step) % call.size();
        sends.add(peer, channel.send(peer, Stream::kResult, output, bytes));
      }
    } else if (!result.empty()) {
      sends.add(op.root, channel.send(op.root, Stream::kResult, output, bytes));
    }
    if (piece + slots < own.count()) {
      expect(piece + slots);
    }
  }
  co_await Completed(results);
  co_await Completed(sends);
}

Steps direct_exchange(NetCall& call, AllAnnounced& announced, const NameOf& name) {
  co_await announced;
  const Operation& op = call.operation();
  const std::size_t element = call.element();
  const int rank = call.rank();
  Channel& channel = call.channel();
  {
    std::vector<CallFacts> all;
    all.reserve(index(call.size()));
    for (int peer = 0; peer < call.size(); ++peer) {
      all.push_back(call.facts(peer));
    }
    check_splits(call.sequence(), all, name);
  }
  // Elements [source, + count) of the input of `from` go to [target, + count) of the output of
  // `to`.
  const auto counts_of = [&](int peer) { return call.facts(peer).counts; };
  RequestSet requests(channel);
  const auto take = [&](int from, std::int64_t source, std::int64_t target, std::int64_t count) {
    const std::size_t bytes = static_cast<std::size_t>(count) * element;
    std::byte* to = op.output.bytes() + static_cast<std::size_t>(target) * element;
    const std::byte* input = from == rank ? op.input.bytes() : call.eager(from);
    if (input != nullptr) {
      input += static_cast<std::size_t>(source) * element;
      copy_bytes(to, input, bytes);
    } else if (bytes > 0) {
      requests.add(from, channel.receive(from, Stream::kData, to, bytes));
    }
  };
  const auto give = [&](int to, std::int64_t source, std::int64_t count) {
    const std::size_t bytes = static_cast<std::size_t>(count) * element;
    if (to != rank && bytes > 0 && call.eager(rank) == nullptr) {
      requests.add(to,
                   channel.send(to,
                                Stream::kData,
                                op.input.bytes() + static_cast<std::size_t>(source) * element,
                                bytes));
    }
  };
  switch (op.kind) {
    case OpKind::kGather:
      if (rank == op.root) {
        for (int peer = 0; peer < call.size(); ++peer) {
          take(peer, 0, sum_before(counts_of(rank), peer), counts_of(rank)[peer]);
        }
      } else {
        give(op.root, 0, op.input.numel());
      }
      break;
    case OpKind::kScatter:
      if (rank == op.root) {
        for (int peer = 0; peer < call.size(); ++peer) {
          give(peer, sum_before(counts_of(rank), peer), counts_of(rank)[peer]);
        }
      }
      take(op.root, sum_before(counts_of(op.root), rank), 0, counts_of(op.root)[rank]);
      break;
    default: {  // all_to_all
      std::int64_t target = 0;
      for (int peer = 0; peer < call.size(); ++peer) {
        const std::int64_t* counts = counts_of(peer);
        take(peer, sum_before(counts, rank), target, counts[rank]);
        target += counts[rank];
        give(peer, sum_before(counts_of(rank), peer), counts_of(rank)[peer]);
      }
    }
  }
  co_await Completed(requests);
}

}  // namespace trireme::detail
