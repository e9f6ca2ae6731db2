#include <algorithm>

#include "comm/order/copy_bytes.h"
#include "comm/order/matching.h"
#include "comm/shm/collectives.h"
#include "comm/shm/conditions.h"
#include "comm/shm/matching.h"

namespace trireme::detail {
namespace {

constexpr std::size_t kWindows = 8;  // at least 3: note [stage windows]
constexpr std::size_t kLeastWindow = 16 << 10;
constexpr std::size_t kWindowAlignment = 64;  // bytes: cache lines

// A short input has several windows as well: else one rank would wait while the other copies.
std::size_t window_bytes(std::size_t input_bytes, std::size_t stage_bytes) {
  const std::size_t most = stage_bytes / kWindows;
  return std::min(most, std::max(kLeastWindow, input_bytes / 4)) / kWindowAlignment *
         kWindowAlignment;
}

// Elements [source, source + count) of the input of `from` go to [target, ...) of the output.
struct Pull {
  int from;
  std::int64_t source;
  std::int64_t target;
  std::int64_t count;
};

// What this rank takes from whom in the operations that only move data.
std::vector<Pull> plan_pulls(const Endpoint& endpoint, const Call& call) {
  const Control& control = endpoint.control();
  const int rank = endpoint.rank();
  const Operation& op = call.operation;
  const auto counts_of = [&](int peer) {
    return control.counts(control.slot(peer, endpoint.sequence_of(call.number)));
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
      for (int peer = 0; peer < endpoint.size(); ++peer) {
        pulls.push_back({peer, 0, sum_before(counts, peer), counts[peer]});
      }
      // From the next rank on: else all would read the memory of the first one at once.
      std::rotate(pulls.begin(), pulls.begin() + rank, pulls.end());
      break;
    }
    case OpKind::kNeighbourAllGather: {
      std::int64_t target = 0;
      for (const int peer : op.heard) {
        const std::int64_t count = counts_of(peer)[rank];
        pulls.push_back({peer, 0, target, count});
        target += count;
      }
      break;
    }
    default: {  // all_to_all
      std::int64_t target = 0;
      for (int peer = 0; peer < endpoint.size(); ++peer) {
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
  co_await AllIssued(endpoint_, call);
  check_splits(endpoint_, endpoint_.sequence_of(call.number), call.operation);

  const std::size_t element = dtype_bytes(call.operation.dtype);
  std::byte* output = call.operation.output.bytes();
  const std::vector<Pull> pulls = plan_pulls(endpoint_, call);
  std::size_t longest_staged = 0;
  bool any_shared = false;
  bool any_kernel = false;
  for (int peer = 0; peer < endpoint_.size(); ++peer) {
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
    const int error = endpoint_.kernel_copy().read(pull.from, theirs.offset + offset, to, bytes);
    if (error != 0) {
      co_await AliveAfterAll(pull.from);
      throw endpoint_.unreadable(pull.from, error);
    }
    lenders.push_back(pull.from);
  }
  if (any_kernel) {
    co_await Undisturbed(endpoint_, std::move(lenders));
  }

  // Note [stage windows]
  // An operation goes through one half of the staging areas, in windows of an eighth of it that are
  // used round and round, so that those who fill and those who empty them work at the same time, in
  // memory that stays in their caches. A rank passes the phase of window w once it has filled that,
  // and emptied all up to w - 2. Whoever fills window w, where w - kWindows was, first awaits the
  // phase of w - kWindows + 2.
  //
  // Halves alternate by `turn_`, which goes on counting from operation to operation. The half of
  // turn t was last used in turn t - 2; peers finished reading that before they passed the first
  // phase of turn t - 1, which this rank has awaited: so it is free to be written without asking.
  const Control& control = endpoint_.control();
  const std::size_t window = window_bytes(longest_staged, control.stage_bytes());
  const std::size_t windows = (longest_staged + window - 1) / window;
  const Source mine = slot(call, endpoint_.rank()).source;
  const std::size_t own_bytes =
      mine == Source::kStaged ? call.operation.input.size_bytes() : std::size_t{0};
  const bool empties = std::any_of(pulls.begin(), pulls.end(), [&](const Pull& pull) {
    return pull.from != endpoint_.rank() && slot(call, pull.from).source == Source::kStaged;
  });
  const std::uint32_t first_phase = phase_ + 1;
  const auto phase_of = [&](std::size_t w) { return first_phase + static_cast<std::uint32_t>(w); };
  const auto place_of = [&](int peer, std::size_t w) {
    return control.stage(peer, turn_) + w % kWindows * window;
  };
  std::size_t filled = 0;
  for (std::size_t w = 0; w < windows; ++w) {
    for (; filled < std::min(w + 2, windows); ++filled) {
      const std::size_t begin = filled * window;
      if (begin < own_bytes) {
        if (filled >= kWindows) {
          co_await AllAtPhase(endpoint_, phase_of(filled - kWindows + 2));
        }
        copy_bytes(place_of(endpoint_.rank(), filled),
                   call.operation.input.bytes() + begin,
                   std::min(window, own_bytes - begin));
      }
      pass_phase();
    }
    if (!empties) {
      continue;
    }
    co_await AllAtPhase(endpoint_, phase_of(w));
    const std::size_t begin = w * window;
    for (const Pull& pull : pulls) {
      if (pull.from == endpoint_.rank() || slot(call, pull.from).source != Source::kStaged) {
        continue;
      }
      const std::size_t first = static_cast<std::size_t>(pull.source) * element;
      const std::size_t last = first + static_cast<std::size_t>(pull.count) * element;
      const std::size_t from = std::max(first, begin);
      const std::size_t to = std::min(last, begin + window);
      if (from < to) {
        copy_bytes(output + static_cast<std::size_t>(pull.target) * element + (from - first),
                   place_of(pull.from, w) + (from - begin),
                   to - from);
      }
    }
  }
  if (windows > 0) {
    co_await AllAtPhase(endpoint_, first_phase);
    ++turn_;
  }
  // Inputs that are read where they are stay until all have read them.
  if (any_shared || any_kernel) {
    pass_phase();
  }
  if (any_shared || mine == Source::kKernel) {
    co_await AllAtPhase(endpoint_, phase_);
  }
}

}  // namespace trireme::detail
