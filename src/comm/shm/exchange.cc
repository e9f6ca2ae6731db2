#include <algorithm>
#include <numeric>

#include "comm/shm/collectives.h"
#include "comm/shm/conditions.h"
#include "comm/shm/matching.h"

namespace trireme::detail {
namespace {

// Elements [source, source + count) of the input of `from` go to [target, ...) of the output.
struct Pull {
  int from;
  std::int64_t source;
  std::int64_t target;
  std::int64_t count;
};

// What this rank takes from whom in the operations that only move data.
std::vector<Pull> plan_pulls(const Station& station, const Call& call) {
  const Control& control = station.control();
  const int rank = station.rank();
  const Operation& op = call.operation;
  const auto counts_of = [&](int peer) {
    return control.counts(control.slot(peer, call.sequence));
  };
  std::vector<Pull> pulls;
  switch (op.kind) {
    case OpKind::kBroadcast:
      if (rank != op.root) {
        pulls.push_back({op.root, 0, 0, op.total});
      }
      break;
    case OpKind::kScatter: {
      const std::int64_t* counts = counts_of(op.root);
      pulls.push_back({op.root, sum_before(counts, rank), 0, counts[rank]});
      break;
    }
    case OpKind::kGather:
      if (rank != op.root) {
        break;
      }
      [[fallthrough]];
    case OpKind::kAllGather: {
      const std::int64_t* counts = counts_of(rank);
      for (int peer = 0; peer < station.size(); ++peer) {
        pulls.push_back({peer, 0, sum_before(counts, peer), counts[peer]});
      }
      // From the next rank on: else all would read the memory of the first one at once.
      std::rotate(pulls.begin(), pulls.begin() + rank, pulls.end());
      break;
    }
    default: {  // all_to_all
      std::int64_t target = 0;
      for (int peer = 0; peer < station.size(); ++peer) {
        const std::int64_t* counts = counts_of(peer);
        pulls.push_back({peer, sum_before(counts, rank), target, counts[rank]});
        target += counts[rank];
      }
      std::rotate(pulls.begin(), pulls.begin() + rank, pulls.end());
    }
  }
  return pulls;
}

}  // namespace

// Operations that only move data: every rank pulls what it needs into its own output.
Steps Collectives::exchange(const Call& call) {
  co_await AllIssued(station_, call);
  check_splits(station_, call.sequence);

  const std::size_t element = dtype_bytes(call.operation.dtype);
  std::byte* output = call.operation.output.bytes();
  const std::vector<Pull> pulls = plan_pulls(station_, call);
  std::size_t longest_staged = 0;
  bool any_shared = false;
  bool any_kernel = false;
  for (int peer = 0; peer < station_.size(); ++peer) {
    const Slot& theirs = slot(call, peer);
    any_shared |= theirs.source == Source::kShared;
    any_kernel |= theirs.source == Source::kKernel;
    if (theirs.source == Source::kStaged) {
      longest_staged =
          std::max(longest_staged, static_cast<std::size_t>(theirs.input_numel) * element);
    }
  }
  std::vector<int> lenders;  // whose memory was read through the kernel
  for (const Pull& pull : pulls) {
    std::byte* const to = output + static_cast<std::size_t>(pull.target) * element;
    const std::size_t offset = static_cast<std::size_t>(pull.source) * element;
    const std::size_t bytes = static_cast<std::size_t>(pull.count) * element;
    if (const std::byte* input = readable_input(call, pull.from)) {
      copy_bytes(to, input + offset, bytes);
      continue;
    }
    const Slot& theirs = slot(call, pull.from);
    if (theirs.source != Source::kKernel || bytes == 0) {
      continue;
    }
    const int error = station_.kernel_copy().read(pull.from, theirs.offset + offset, to, bytes);
    if (error != 0) {
      co_await AliveAfterAll(pull.from);
      throw station_.unreadable(pull.from, error);
    }
    lenders.push_back(pull.from);
  }
  if (any_kernel) {
    co_await Undisturbed(station_, std::move(lenders));
  }

  // Note [stage halves]
  // Window w of the input is bytes [w, w + 1) * stage_bytes. A rank writes a window into one half
  // of its staging area, passes a phase, and reads the peers' windows once all have passed it.
  // Halves alternate by `turn_`, which goes on counting from operation to operation. The half of
  // turn t was last used in turn t - 2; peers finished reading that before they passed the phase
  // of turn t - 1, which this rank has awaited: so it is free to be written without asking.
  const std::size_t window = station_.control().stage_bytes();
  const Source mine = slot(call, station_.rank()).source;
  const bool mine_staged = mine == Source::kStaged;
  for (std::size_t begin = 0; begin < longest_staged; begin += window, ++turn_) {
    const std::size_t own_bytes = call.operation.input.size_bytes();
    if (mine_staged && begin < own_bytes) {
      copy_bytes(station_.control().stage(station_.rank(), turn_),
                 call.operation.input.bytes() + begin,
                 std::min(window, own_bytes - begin));
    }
    pass_phase();
    co_await AllAtPhase(station_, phase_);
    for (const Pull& pull : pulls) {
      if (pull.from == station_.rank() || slot(call, pull.from).source != Source::kStaged) {
        continue;
      }
      const std::size_t first = static_cast<std::size_t>(pull.source) * element;
      const std::size_t last = first + static_cast<std::size_t>(pull.count) * element;
      const std::size_t from = std::max(first, begin);
      const std::size_t to = std::min(last, begin + window);
      if (from < to) {
        copy_bytes(output + static_cast<std::size_t>(pull.target) * element + (from - first),
                   station_.control().stage(pull.from, turn_) + (from - begin),
                   to - from);
      }
    }
  }
  // Inputs that are read where they are stay until all have read them.
  if (any_shared || any_kernel) {
    pass_phase();
  }
  if (any_shared || mine == Source::kKernel) {
    co_await AllAtPhase(station_, phase_);
  }
}

}  // namespace trireme::detail
