#include "comm/shm/matching.h"

#include <algorithm>
#include <numeric>

#include "trireme/core/error.h"

namespace trireme::detail {
namespace {

[[noreturn]] void disagree(const Station& station,
                           std::uint32_t sequence,
                           int peer,
                           const char* what) {
  throw CommError(
      CommError::Reason::kMismatch,
      peer,
      concat("rank ",
             station.rank(),
             " and ",
             station.name(peer),
             " called ",
             what,
             " (rank ",
             station.rank(),
             ": ",
             describe_slot(station, station.rank(), sequence),
             "; rank ",
             peer,
             ": ",
             describe_slot(station, peer, sequence),
             "): every rank must make the same calls with the same arguments in the same order"));
}

}  // namespace

std::string describe_slot(const Station& station, int peer, std::uint32_t sequence) {
  if (sequence == 0) {
    return "nothing yet";
  }
  const Slot& slot = station.control().slot(peer, sequence);
  return concat(
      "#", sequence, " ", describe(slot.kind, slot.reduce, slot.dtype, slot.total, slot.root));
}

void check_same_call(const Station& station, std::uint32_t sequence, int peer) {
  if (peer == station.rank()) {
    return;
  }
  const Control& control = station.control();
  Slot& mine = control.slot(station.rank(), sequence);
  Slot& theirs = control.slot(peer, sequence);
  if (mine.kind != theirs.kind) {
    disagree(station, sequence, peer, "different operations");
  }
  if (mine.kind == OpKind::kBarrier) {
    return;
  }
  if (mine.dtype != theirs.dtype) {
    disagree(station, sequence, peer, "with different dtypes");
  }
  if (reduces(mine.kind) && mine.reduce != theirs.reduce) {
    disagree(station, sequence, peer, "with different reductions");
  }
  if (has_root(mine.kind) && mine.root != theirs.root) {
    disagree(station, sequence, peer, "with different roots");
  }
  if (mine.kind == OpKind::kAllToAll) {
    return;  // lengths may differ; check_splits looks at all of them together
  }
  if (mine.total >= 0 && theirs.total >= 0 && mine.total != theirs.total) {
    disagree(station, sequence, peer, "with different lengths");
  }
  if (mine.has_counts != 0 && theirs.has_counts != 0 &&
      !std::equal(
          control.counts(mine), control.counts(mine) + station.size(), control.counts(theirs))) {
    disagree(station, sequence, peer, "with different counts");
  }
}

void check_splits(const Station& station, std::uint32_t sequence) {
  const Control& control = station.control();
  const Slot& mine = control.slot(station.rank(), sequence);
  const auto require = [&](int peer, const char* what, std::int64_t expected, std::int64_t found) {
    if (expected != found) {
      throw CommError(CommError::Reason::kMismatch,
                      peer,
                      concat(op_name(mine.kind),
                             " #",
                             sequence,
                             ": the ",
                             what,
                             " of ",
                             station.name(peer),
                             " must have ",
                             expected,
                             " elements, found ",
                             found));
    }
  };
  for (int peer = 0; peer < station.size(); ++peer) {
    const Slot& theirs = control.slot(peer, sequence);
    if (mine.kind == OpKind::kGather) {
      require(peer,
              "input",
              control.counts(control.slot(mine.root, sequence))[peer],
              theirs.input_numel);
    } else if (mine.kind == OpKind::kScatter) {
      require(peer,
              "output",
              control.counts(control.slot(mine.root, sequence))[peer],
              theirs.output_numel);
    } else if (mine.kind == OpKind::kAllToAll) {
      std::int64_t arriving = 0;
      for (int sender = 0; sender < station.size(); ++sender) {
        arriving += control.counts(control.slot(sender, sequence))[peer];
      }
      require(peer, "output", arriving, theirs.output_numel);
    }
  }
}

}  // namespace trireme::detail
