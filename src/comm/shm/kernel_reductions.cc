// The parts of an all_reduce or reduce_scatter whose inputs are all read through the kernel
// (kernel_copy.h): each rank adds up its own chunk of them, and fetches the others' sums.

#include <algorithm>

#include "comm/order/matching.h"
#include "comm/shm/collectives.h"
#include "trireme/core/index.h"

namespace trireme::detail {
namespace {

// The peers' pieces of a chunk lie side by side while they are added up: they should stay in the
// cache, but a piece must be worth a call.
constexpr std::size_t kPiecesBytes = 256 << 10;
constexpr std::size_t kLeastPieceBytes = 16 << 10;
constexpr std::size_t kLeastGatheredBytes = 48 << 10;  // below, a call takes longer than a copy
constexpr std::size_t kPipelinedBytes = 32 << 10;
constexpr std::size_t kPieceAlignment = 64;  // elements: vectors and cache lines

}  // namespace

bool Collectives::is_worth_the_kernel(const Operation& op) const {
  if (!endpoint_.kernel_copy().usable()) {
    return false;
  }
  if (op.kind == OpKind::kAllReduce || op.kind == OpKind::kReduceScatter) {
    return op.input.size_bytes() / index(endpoint_.size()) >= kLeastPieceBytes;
  }
  // Here one rank would do nothing while others read its memory, or would have to read that of all
  // others: what is filled and emptied at the same time (note [stage windows]) takes less time.
  if (op.kind == OpKind::kBroadcast || op.kind == OpKind::kGather) {
    return op.input.size_bytes() < kPipelinedBytes;
  }
  if (op.kind == OpKind::kAllGather) {
    return op.input.size_bytes() >= kLeastGatheredBytes;
  }
  return !reduces(op.kind);  // reduce: the sums have no place outside of the root
}

std::optional<FailedRead> Collectives::reduce_through_kernel(const Call& call) {
  const Operation& op = call.operation;
  const int rank = endpoint_.rank();
  const int size = endpoint_.size();
  const std::size_t element = dtype_bytes(op.dtype);
  const auto first = static_cast<std::size_t>(sum_before(op.counts.data(), rank));
  const auto count = static_cast<std::size_t>(op.counts[index(rank)]);
  const std::size_t piece =
      std::max(kLeastPieceBytes, kPiecesBytes / index(std::max(1, size - 1))) / element /
      kPieceAlignment * kPieceAlignment;
  pieces_.resize(index(size) * piece * element);
  std::vector<const std::byte*> inputs(index(size));
  for (std::size_t done = 0; done < count; done += piece) {
    const std::size_t numel = std::min(piece, count - done);
    const std::size_t at = (first + done) * element;
    inputs[index(rank)] = op.input.bytes() + at;
    for (int step = 1; step < size; ++step) {  // not all from the same rank at once
      const int peer = (rank + step) % size;
      std::byte* const theirs = pieces_.data() + index(peer) * piece * element;
      inputs[index(peer)] = theirs;
      const int error =
          endpoint_.kernel_copy().read(peer, slot(call, peer).offset + at, theirs, numel * element);
      if (error != 0) {
        return FailedRead{peer, error};
      }
    }
    std::byte* const output = op.kind == OpKind::kReduceScatter
                                  ? op.output.bytes() + done * dtype_bytes(op.output.dtype())
                                  : op.output.bytes() + at;
    reduce_chunk(call, first + done, numel, inputs, {output});
  }
  return std::nullopt;
}

std::optional<FailedRead> Collectives::fetch_through_kernel(const Call& call) const {
  const Operation& op = call.operation;
  const std::size_t element = dtype_bytes(op.dtype);
  for (int step = 1; step < endpoint_.size(); ++step) {
    const int peer = (endpoint_.rank() + step) % endpoint_.size();
    // An all_reduce is in place: a rank's sums are where its input was.
    const std::size_t at = static_cast<std::size_t>(sum_before(op.counts.data(), peer)) * element;
    const int error =
        endpoint_.kernel_copy().read(peer,
                                     slot(call, peer).offset + at,
                                     op.output.bytes() + at,
                                     static_cast<std::size_t>(op.counts[index(peer)]) * element);
    if (error != 0) {
      return FailedRead{peer, error};
    }
  }
  return std::nullopt;
}

}  // namespace trireme::detail
