#include "comm/shm/collectives.h"

#include <algorithm>
#include <cstring>

#include "comm/shm/conditions.h"

// How the collectives work. A rank's input is in one of these places (control.h, Source):
//
//   slot    small inputs are copied behind the descriptor when the operation is issued. Peers read
//           them there, each rank computes its own result, and nobody waits for anybody to finish
//           reading, because slots are reused only after kSlots operations.
//   shared  inputs in a SharedBuffer are read by the peers where they are. A reduction gives each
//           rank a chunk: it reads that chunk from every rank and writes the result to everyone
//           who needs it. One synchronisation at the end keeps the inputs alive until all have
//           read them.
//   kernel  any other memory is read by the peers through the kernel (kernel_copy.h), where that is
//           allowed. A rank whose memory is read is done when its readers are; who only reads waits
//           for nobody. Reductions do so where all inputs are like this, and pieces are long.
//   staged  else it passes through the staging area, a window at a time.
//
// The sum of an element is one chain in rank order in every case, so all give the same bits.

namespace trireme::detail {

Slot& Collectives::slot(const Call& call, int peer) const {
  return endpoint_.control().slot(peer, endpoint_.sequence_of(call.number));
}

const std::byte* Collectives::readable_input(const Call& call, int peer) const {
  if (peer == endpoint_.rank()) {
    return call.operation.input.bytes();
  }
  Slot& theirs = slot(call, peer);
  switch (theirs.source) {
    case Source::kSlot:
      return endpoint_.control().eager(theirs);
    case Source::kShared:
      return endpoint_.resolve(peer, theirs.segment, theirs.offset);
    default:
      return nullptr;
  }
}

Slot& Collectives::describe(const Call& call) const {
  const Operation& op = call.operation;
  Slot& mine = slot(call, endpoint_.rank());
  mine.kind = op.kind;
  mine.reduce = op.reduce;
  mine.dtype = op.dtype;
  mine.root = op.root;
  mine.total = op.total;
  mine.input_numel = op.input.numel();
  mine.output_numel = op.output.numel();
  mine.device = op.device.type;
  mine.has_counts = op.counts.empty() ? 0 : 1;
  std::copy(op.counts.begin(), op.counts.end(), endpoint_.control().counts(mine));
  return mine;
}

void Collectives::show(const Call& call, Slot& mine) const {
  const std::uint32_t sequence = endpoint_.sequence_of(call.number);
  mine.sequence.store(sequence, std::memory_order_seq_cst);
  std::atomic<std::uint64_t>& issued = endpoint_.self().issued;
  issued.store(std::max(issued.load(std::memory_order_relaxed), call.number),
               std::memory_order_relaxed);
  endpoint_.ring_if_all_issued(sequence);
}

void Collectives::publish_call(const Call& call) {
  Slot& mine = describe(call);
  mine.absent_count = 0;
  mine.source = Source::kNone;
  show(call, mine);
}

void Collectives::publish(const Call& call) {
  const Operation& op = call.operation;
  Slot& mine = describe(call);
  const std::vector<Range>& absent = op.terms.absent;
  mine.absent_count = static_cast<std::uint32_t>(absent.size());
  if (!absent.empty()) {
    std::memcpy(endpoint_.control().eager(mine), absent.data(), absent.size() * sizeof(Range));
  }
  const std::size_t bytes = op.input.size_bytes();
  if (bytes == 0) {
    mine.source = Source::kNone;
  } else if ((bytes > kEagerSharedBytes || !op.device.is_host()) &&
             endpoint_.locate(op.input.bytes(), bytes, &mine.segment, &mine.offset)) {
    mine.source = Source::kShared;
  } else if (bytes <= kEagerBytes && absent.empty()) {
    mine.source = Source::kSlot;
    std::memcpy(endpoint_.control().eager(mine), op.input.bytes(), bytes);
  } else if (is_worth_the_kernel(op)) {
    mine.source = Source::kKernel;
    mine.offset = reinterpret_cast<std::uintptr_t>(op.input.bytes());
  } else {
    mine.source = Source::kStaged;
  }
  show(call, mine);
}

void Collectives::pass_phase() {
  ++phase_;
  endpoint_.self().phase.store(phase_, std::memory_order_seq_cst);
  endpoint_.ring_if_all_at(phase_);
}

Steps Collectives::run(const Call& call) {
  if (call.operation.kind == OpKind::kBarrier || call.operation.kind == OpKind::kAllocate) {
    return barrier(call);
  }
  if (!call.operation.device.is_host()) {
    return run_on_device(call);
  }
  if (!reduces(call.operation.kind)) {
    return exchange(call);
  }
  return reduction(call);
}

Steps Collectives::barrier(const Call& call) {
  co_await AllIssued(endpoint_, call);
}

}  // namespace trireme::detail
