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
      break;
    }
    default: {  // all_to_all
      std::int64_t target = 0;
      for (int peer = 0; peer < station.size(); ++peer) {
        const std::int64_t* counts = counts_of(peer);
        pulls.push_back({peer, sum_before(counts, rank), target, counts[rank]});
        target += counts[rank];
      }
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
  for (int peer = 0; peer < station_.size(); ++peer) {
    const Slot& theirs = slot(call, peer);
    any_shared |= theirs.source == Source::kShared;
    if (theirs.source == Source::kStaged) {
      longest_staged =
          std::max(longest_staged, static_cast<std::size_t>(theirs.input_numel) * element);
    }
  }
  for (const Pull& pull : pulls) {
    if (const std::byte* input = readable_input(call, pull.from)) {
      copy_bytes(output + static_cast<std::size_t>(pull.target) * element,
                 input + static_cast<std::size_t>(pull.source) * element,
                 static_cast<std::size_t>(pull.count) * element);
    }
  }

  // Note [stage halves]
  // Window w of the input is bytes [w, w + 1) * stage_bytes. A rank writes a window into one half
  // of its staging area, passes a phase, and reads the peers' windows once all have passed it.
  // Halves alternate by `turn_`, which goes on counting from operation to operation. The half of
  // turn t was last used in turn t - 2; peers finished reading that before they passed the phase
  // of turn t - 1, which this rank has awaited: so it is free to be written without asking.
  const std::size_t window = station_.control().stage_bytes();
  const bool mine_staged = slot(call, station_.rank()).source == Source::kStaged;
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
  if (any_shared) {
    pass_phase();
    co_await AllAtPhase(station_, phase_);
  }
}

}  // namespace trireme::detail
