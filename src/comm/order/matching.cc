#include "comm/order/matching.h"

#include <algorithm>
#include <numeric>

#include "trireme/core/error.h"

namespace trireme::detail {

std::string describe_facts(std::uint32_t sequence, const CallFacts& facts) {
  return concat(
      "#",
      sequence,
      " ",
      describe(facts.kind, facts.reduce, facts.dtype, facts.total, facts.root, facts.device));
}

std::string LastCall::text() const {
  return sequence == 0 ? "nothing yet" : describe_facts(sequence, facts);
}

namespace {

// "rank 2": in a group, too, ranks are named by their numbers in the world.
std::string short_name(const NameOf& name, int rank) {
  const std::string full = name(rank);
  return full.substr(0, full.find(" ("));
}

CommError wrong_length(std::uint32_t sequence,
                       OpKind kind,
                       const char* what,
                       int rank,
                       std::int64_t expected,
                       std::int64_t found,
                       const NameOf& name) {
  return {CommError::Reason::kMismatch,
          rank,
          concat("{} #{}: the {} of {} must have {} elements, found {}",
                 {op_name(kind), sequence, what, name(rank), expected, found})};
}

}  // namespace

void check_same_call(std::uint32_t sequence,
                     int size,
                     int rank,
                     const CallFacts& mine,
                     int peer,
                     const CallFacts& theirs,
                     const NameOf& name) {
  if (peer == rank) {
    return;
  }
  const auto disagree = [&](const char* what) {
    throw CommError(CommError::Reason::kMismatch,
                    peer,
                    concat("{} and {} called {} ({}: {}; {}: {}): every rank must make the same "
                           "calls with the same arguments in the same order",
                           {short_name(name, rank),
                            name(peer),
                            what,
                            short_name(name, rank),
                            describe_facts(sequence, mine),
                            short_name(name, peer),
                            describe_facts(sequence, theirs)}));
  };
  if (mine.kind != theirs.kind) {
    disagree("different operations");
  }
  if (mine.kind == OpKind::kBarrier) {
    return;
  }
  if (mine.device != theirs.device) {
    disagree("with memory of different devices");
  }
  if (mine.dtype != theirs.dtype) {
    disagree("with different dtypes");
  }
  if (reduces(mine.kind) && mine.reduce != theirs.reduce) {
    disagree("with different reductions");
  }
  if (has_root(mine.kind) && mine.root != theirs.root) {
    disagree("with different roots");
  }
  if (mine.kind == OpKind::kAllToAll || mine.kind == OpKind::kNeighbourAllGather) {
    return;  // lengths may differ; check_splits looks at all of them together
  }
  if (mine.total >= 0 && theirs.total >= 0 && mine.total != theirs.total) {
    disagree("with different lengths");
  }
  if (mine.counts != nullptr && theirs.counts != nullptr &&
      !std::equal(mine.counts, mine.counts + size, theirs.counts)) {
    disagree("with different counts");
  }
}

void check_splits(std::uint32_t sequence, std::span<const CallFacts> all, const NameOf& name) {
  const OpKind kind = all.front().kind;
  const auto root = static_cast<std::size_t>(std::max(0, all.front().root));
  const auto require =
      [&](std::size_t peer, const char* what, std::int64_t expected, std::int64_t found) {
        if (expected != found) {
          throw wrong_length(sequence, kind, what, static_cast<int>(peer), expected, found, name);
        }
      };
  for (std::size_t peer = 0; peer < all.size(); ++peer) {
    if (kind == OpKind::kGather) {
      require(peer, "input", all[root].counts[peer], all[peer].input_numel);
    } else if (kind == OpKind::kScatter) {
      require(peer, "output", all[root].counts[peer], all[peer].output_numel);
    } else if (kind == OpKind::kAllToAll) {
      std::int64_t arriving = 0;
      for (const CallFacts& sender : all) {
        arriving += sender.counts[peer];
      }
      require(peer, "output", arriving, all[peer].output_numel);
    }
  }
}

void check_neighbours(std::uint32_t sequence,
                      int rank,
                      std::span<const int> heard,
                      std::span<const CallFacts> all,
                      const NameOf& name) {
  std::int64_t arriving = 0;
  for (std::size_t peer = 0; peer < all.size(); ++peer) {
    const int other = static_cast<int>(peer);
    arriving += std::max(std::int64_t{0}, all[peer].counts[rank]);
    const bool hears = std::ranges::find(heard, other) != heard.end();
    const bool is_told = all[peer].counts[rank] != kNotHeard;
    if (hears != is_told) {
      throw CommError(CommError::Reason::kMismatch,
                      other,
                      concat("neighbour_all_gather #{}: {} {} {} in Neighbours::from, but {} {} it "
                             "in Neighbours::to: each of the two must name the other, or neither",
                             {sequence,
                              short_name(name, rank),
                              hears ? "names" : "does not name",
                              name(other),
                              short_name(name, other),
                              is_told ? "names" : "does not name"}));
    }
  }
  const CallFacts& mine = all[static_cast<std::size_t>(rank)];
  if (arriving != mine.output_numel) {
    throw wrong_length(sequence, mine.kind, "output", rank, arriving, mine.output_numel, name);
  }
}

void check_message(int rank, const Operation& recv, const MessageFacts& sent, const NameOf& name) {
  const MessageFacts wanted{recv.dtype, recv.output.numel(), recv.tag};
  if (sent.dtype == wanted.dtype && sent.numel == wanted.numel && sent.tag == wanted.tag) {
    return;
  }
  const auto text = [](const MessageFacts& facts) {
    return concat(dtype_name(facts.dtype), " x ", facts.numel, ", tag ", facts.tag);
  };
  throw CommError(
      CommError::Reason::kMismatch,
      recv.peer,
      concat("{} called recv({}) from {}, whose next message is {}: messages of a pair must be "
             "received in the order they were sent, with the same dtype, length and tag",
             {short_name(name, rank), text(wanted), name(recv.peer), text(sent)}));
}

std::int64_t sum_before(const std::int64_t* counts, int rank) {
  return std::accumulate(counts, counts + rank, std::int64_t{0});
}

}  // namespace trireme::detail
