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
  RequestSet requests(call.channel());
  for (int step = 1; step < call.size(); ++step) {
    const int peer = (call.rank() + step) % call.size();
    if (const Span part = call.part(peer); !call.is_eager(part.size_bytes())) {
      requests.receive(peer, Stream::kData, part);
    }
  }
  if (!call.is_eager(op.input.size_bytes())) {
    for (int step = 1; step < call.size(); ++step) {
      requests.send((call.rank() + step) % call.size(), Stream::kData, op.input);
    }
    copy_bytes(call.part(call.rank()).bytes(), op.input.bytes(), op.input.size_bytes());
  }
  co_await AllPosted();
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
    const std::size_t slot = (piece % slots) * peers + index(step - 1);
    return Span(scratch.get() + slot * slot_bytes, own[piece].size(), op.dtype);
  };
  std::vector<RequestSet> arriving = request_sets(channel, slots);
  const auto expect = [&](std::size_t piece) {
    for (int step = 1; step < call.size(); ++step) {
      const int peer = (rank + step) % call.size();
      arriving[piece % slots].receive(peer, Stream::kData, place(piece, step));
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
      sends.send(peer, Stream::kData, op.input.part(range.begin, range.size()));
      if (takes_results) {
        // Into the place of what was sent: the result can only come when that has arrived.
        results.receive(peer, Stream::kResult, op.output.part(range.begin, range.size()));
      }
    }
  }
  // Results are posted one by one: only what has none is complete before its last piece is added
  // up.
  const bool posts_results = op.kind != OpKind::kReduceScatter;
  if (!posts_results && own.count() <= slots) {
    co_await AllPosted();
  }
  co_await announced;

  std::vector<const std::byte*> inputs(index(call.size()));
  std::vector<std::byte> result;  // where this rank makes it for the root alone
  if (op.kind == OpKind::kReduce && rank != op.root) {
    result.resize(static_cast<std::size_t>(call.count(rank)) * element);
  }
  // Where results go: all of them, or this rank's part.
  const bool in_part = op.kind == OpKind::kReduceScatter || !result.empty();
  const Span whole = result.empty() ? op.output : Span(result.data(), call.count(rank), op.dtype);
  for (std::size_t piece = 0; piece < own.count(); ++piece) {
    co_await Completed(arriving[piece % slots]);
    const Range range = own[piece];
    for (int step = 1; step < call.size(); ++step) {
      inputs[index((rank + step) % call.size())] = place(piece, step).bytes();
    }
    inputs[index(rank)] = op.input.part(range.begin, range.size()).bytes();
    const Span output = whole.part(range.begin - (in_part ? call.begin(rank) : 0), range.size());
    std::byte* const sums = output.bytes();
    call.reduce(range, inputs, std::span(&sums, 1));
    if (to_all) {
      for (int step = 1; step < call.size(); ++step) {
        sends.send((rank + step) % call.size(), Stream::kResult, output);
      }
    } else if (!result.empty()) {
      sends.send(op.root, Stream::kResult, output);
    }
    if (piece + slots < own.count()) {
      expect(piece + slots);
    }
    if (!posts_results && piece + slots + 1 >= own.count()) {
      co_await AllPosted();
    }
  }
  co_await AllPosted();
  co_await Completed(results);
  co_await Completed(sends);
}

Steps direct_exchange(NetCall& call, AllAnnounced& announced, const NameOf& name) {
  co_await announced;
  const Operation& op = call.operation();
  const std::size_t element = call.element();
  const int rank = call.rank();
  {
    std::vector<CallFacts> all;
    all.reserve(index(call.size()));
    for (int peer = 0; peer < call.size(); ++peer) {
      all.push_back(call.facts(peer));
    }
    if (op.kind == OpKind::kNeighbourAllGather) {
      check_neighbours(call.sequence(), rank, op.heard, all, name);
    }
    check_splits(call.sequence(), all, name);
  }
  // Elements [source, + count) of the input of `from` go to [target, + count) of the output of
  // `to`.
  const auto counts_of = [&](int peer) { return call.facts(peer).counts; };
  RequestSet requests(call.channel());
  const auto take = [&](int from, std::int64_t source, std::int64_t target, std::int64_t count) {
    const Span to = op.output.part(target, count);
    const std::byte* input = from == rank ? op.input.bytes() : call.eager(from);
    if (input != nullptr) {
      copy_bytes(to.bytes(), input + static_cast<std::size_t>(source) * element, to.size_bytes());
    } else if (count > 0) {
      requests.receive(from, Stream::kData, to);
    }
  };
  const auto give = [&](int to, std::int64_t source, std::int64_t count) {
    if (to != rank && count > 0 && call.eager(rank) == nullptr) {
      requests.send(to, Stream::kData, op.input.part(source, count));
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
    case OpKind::kNeighbourAllGather: {
      std::int64_t target = 0;
      for (const int peer : op.heard) {
        const std::int64_t count = counts_of(peer)[rank];
        take(peer, 0, target, count);
        target += count;
      }
      for (int peer = 0; peer < call.size(); ++peer) {
        give(peer, 0, counts_of(rank)[peer]);
      }
      break;
    }
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
  co_await AllPosted();
  co_await Completed(requests);
}

}  // namespace trireme::detail
