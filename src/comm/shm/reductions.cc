#include <algorithm>
#include <numeric>
#include <vector>

#include "comm/order/copy_bytes.h"
#include "comm/order/matching.h"
#include "comm/shm/collectives.h"
#include "comm/shm/conditions.h"
#include "device/stream.h"
#include "trireme/core/index.h"

namespace trireme::detail {
namespace {

// Vectors and cache lines: windows are cut at multiples of this many elements.
constexpr std::size_t kTurnAlignment = 64;

}  // namespace

// all_reduce, reduce_scatter, reduce. The elements are cut into one chunk per rank (counts), and
// each rank reduces its own chunk, for itself or for everyone.
//
// Through the stage this goes in windows, one per turn (Note [stage windows]); window w is the w-th
// piece of every chunk. The stage of a rank holds, for each chunk c, its own contribution to that
// piece; where c is its own chunk, that place takes the result, which is what the peers come for.
// One phase per turn does for both directions: passing it says "I have reduced window w, and
// window w + 1 is in my stage". That the stage can be refilled so early is safe: contributions to
// window w were last read before the peers passed the phase of window w; the result place of a
// half is written two turns later, when the peers have passed a phase after fetching it.
Steps Collectives::reduction(const Call& call) {
  co_await AllIssued(endpoint_, call);
  const Operation& op = call.operation;
  if (op.total == 0) {
    co_return;
  }
  const int rank = endpoint_.rank();
  const int size = endpoint_.size();
  bool all_shared = true;
  bool all_in_slots = true;
  bool all_kernel = true;
  for (int peer = 0; peer < size; ++peer) {
    all_kernel &= slot(call, peer).source == Source::kKernel;
    all_shared &= slot(call, peer).source == Source::kShared;
    all_in_slots &= slot(call, peer).source == Source::kSlot;
  }
  if (all_in_slots) {
    reduce_from_slots(call);
    co_return;
  }
  if (all_shared) {
    reduce_in_place(call);
    pass_phase();
    co_await AllAtPhase(endpoint_, phase_);
    co_return;
  }

  if (all_kernel) {
    std::vector<int> lenders(index(size));
    std::iota(lenders.begin(), lenders.end(), 0);
    lenders.erase(lenders.begin() + rank);
    std::optional<FailedRead> failed = reduce_through_kernel(call);
    if (!failed && op.kind == OpKind::kAllReduce) {
      // Everyone has read what will now be overwritten, and has its sums where they will be read.
      pass_phase();
      co_await AllAtPhase(endpoint_, phase_);
      failed = fetch_through_kernel(call);
    }
    if (failed) {
      co_await AliveAfterAll(failed->peer);
      throw endpoint_.unreadable(failed->peer, failed->error);
    }
    co_await Undisturbed(endpoint_, std::move(lenders));
    pass_phase();
    co_await AllAtPhase(endpoint_, phase_);
    co_return;
  }

  const Control& control = endpoint_.control();
  const std::size_t element = dtype_bytes(op.dtype);
  const std::size_t piece =
      control.stage_bytes() / element / index(size) / kTurnAlignment * kTurnAlignment;
  const auto longest = static_cast<std::size_t>(*std::ranges::max_element(op.counts));
  const std::size_t windows = (longest + piece - 1) / piece;
  const auto* input = op.input.bytes();
  // What some could read through the kernel takes the way of all where others have it elsewhere.
  const Source mine = slot(call, rank).source;
  const bool mine_staged = mine == Source::kStaged || mine == Source::kKernel;
  const std::uint32_t first_turn = turn_;
  turn_ += static_cast<std::uint32_t>(windows);

  // Piece `window` of chunk c: where it begins in the whole, and how long it is.
  const auto begin_of = [&](int c, std::size_t window) {
    return static_cast<std::size_t>(sum_before(op.counts.data(), c)) + window * piece;
  };
  const auto length_of = [&](int c, std::size_t window) {
    const auto count = static_cast<std::size_t>(op.counts[index(c)]);
    return std::min(piece, count - std::min(count, window * piece));
  };
  const auto staged = [&](int peer, std::size_t window, int c) {
    return control.stage(peer, first_turn + static_cast<std::uint32_t>(window)) +
           index(c) * piece * element;
  };
  const auto fill_stage = [&](std::size_t window) {
    for (int c = 0; mine_staged && window < windows && c < size; ++c) {
      if (c != rank) {
        copy_bytes(staged(rank, window, c),
                   input + begin_of(c, window) * element,
                   length_of(c, window) * element);
      }
    }
  };
  const auto reduce_own_piece = [&](std::size_t window) {
    if (length_of(rank, window) == 0) {
      return;
    }
    std::vector<const std::byte*> inputs(index(size));
    for (int peer = 0; peer < size; ++peer) {
      const std::byte* whole = readable_input(call, peer);
      inputs[index(peer)] =
          whole != nullptr ? whole + begin_of(rank, window) * element : staged(peer, window, rank);
    }
    std::vector<std::byte*> outputs;
    if (op.kind == OpKind::kReduceScatter) {
      outputs.push_back(op.output.bytes() + window * piece * dtype_bytes(op.output.dtype()));
    } else {
      outputs.push_back(staged(rank, window, rank));
      if (op.output.numel() > 0) {
        outputs.push_back(op.output.bytes() + begin_of(rank, window) * element);
      }
    }
    reduce_chunk(call, begin_of(rank, window), length_of(rank, window), inputs, outputs);
  };
  const auto fetch_results = [&](std::size_t window) {
    for (int c = 0; op.kind != OpKind::kReduceScatter && op.output.numel() > 0 && c < size; ++c) {
      if (c != rank) {
        copy_bytes(op.output.bytes() + begin_of(c, window) * element,
                   staged(c, window, c),
                   length_of(c, window) * element);
      }
    }
  };

  fill_stage(0);
  pass_phase();
  co_await AllAtPhase(endpoint_, phase_);
  for (std::size_t window = 0; window < windows; ++window) {
    reduce_own_piece(window);
    fill_stage(window + 1);
    pass_phase();
    co_await AllAtPhase(endpoint_, phase_);
    fetch_results(window);
  }
  // No phase is owed after the last window: passing its phase, every rank had read every input for
  // the last time (fetching touches only stages, and the fetcher's own memory).
}

// Every rank reads all the inputs and computes what it needs itself.
void Collectives::reduce_from_slots(const Call& call) const {
  const Operation& op = call.operation;
  if (op.output.numel() == 0) {
    return;
  }
  const std::int64_t first =
      op.kind == OpKind::kReduceScatter ? sum_before(op.counts.data(), endpoint_.rank()) : 0;
  std::vector<const std::byte*> inputs(index(endpoint_.size()));
  for (int peer = 0; peer < endpoint_.size(); ++peer) {
    // The own slot too, not the own input: that may be the output.
    inputs[index(peer)] = endpoint_.control().eager(slot(call, peer)) +
                          static_cast<std::size_t>(first) * dtype_bytes(op.dtype);
  }
  reduce_chunk(call,
               static_cast<std::size_t>(first),
               static_cast<std::size_t>(op.output.numel()),
               inputs,
               {op.output.bytes()});
}

// Elements [first, first + numel) of the whole: `inputs` are the ranks' first ones, in rank order;
// where the call accumulates, its one output is also the first term.
void Collectives::reduce_chunk(const Call& call,
                               std::size_t first,
                               std::size_t numel,
                               const std::vector<const std::byte*>& inputs,
                               const std::vector<std::byte*>& outputs) const {
  const Operation& op = call.operation;
  std::vector<device::Term> terms;
  terms.reserve(index(endpoint_.size()));
  for (int peer = 0; peer < endpoint_.size(); ++peer) {
    Slot& theirs = slot(call, peer);
    terms.push_back({inputs[index(peer)],
                     reinterpret_cast<const Range*>(endpoint_.control().eager(theirs)),
                     theirs.absent_count});
  }
  const Range range{static_cast<std::int64_t>(first), static_cast<std::int64_t>(first + numel)};
  const device::Term old{outputs.front(), op.terms.fresh.data(), op.terms.fresh.size()};
  device::Stream& stream = op.device.is_host() ? device::host() : *stream_;
  stream.reduce({.dtype = op.dtype,
                 .output_dtype = op.output.dtype(),
                 .op = op.reduce,
                 .divisor = endpoint_.size(),
                 .group = op.terms.group > 0 ? op.terms.group : endpoint_.sum_group(),
                 .range = range,
                 .terms = terms,
                 .accumulator = op.terms.accumulate ? &old : nullptr,
                 .outputs = outputs});
}

// All inputs are in shared buffers: reduce the own chunk and write it wherever it belongs.
void Collectives::reduce_in_place(const Call& call) const {
  const Operation& op = call.operation;
  const auto first = static_cast<std::size_t>(sum_before(op.counts.data(), endpoint_.rank())) *
                     dtype_bytes(op.dtype);
  std::vector<const std::byte*> inputs;
  std::vector<std::byte*> outputs;
  for (int peer = 0; peer < endpoint_.size(); ++peer) {
    const Slot& theirs = slot(call, peer);
    std::byte* whole = endpoint_.resolve(peer, theirs.segment, theirs.offset);
    inputs.push_back(whole + first);
    // In place: what is read of an all_reduce or reduce is also where the result belongs.
    if (op.kind == OpKind::kAllReduce || (op.kind == OpKind::kReduce && peer == op.root)) {
      outputs.push_back(whole + first);
    }
  }
  if (op.kind == OpKind::kReduceScatter) {
    outputs.push_back(op.output.bytes());
  }
  if (!outputs.empty()) {
    reduce_chunk(call,
                 static_cast<std::size_t>(first) / dtype_bytes(op.dtype),
                 static_cast<std::size_t>(op.counts[index(endpoint_.rank())]),
                 inputs,
                 outputs);
  }
}

}  // namespace trireme::detail
