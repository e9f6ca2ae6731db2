#include "checkpoint/vault_parts.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "trireme/comm/tell.h"
#include "trireme/core/error.h"

// Note [parts elsewhere]
// A part that a rank's machine does not have comes over the network, cut into pieces. All ranks
// know who needs which piece, and go through them in one order, so that nobody waits in a circle. A
// piece that few need is sent to each of them; one that more ranks need than there are machines is
// broadcast, which takes it to each machine once.

namespace trireme::detail {
namespace {

constexpr std::size_t kPartPiece = 4 << 20;

struct PartCopy {
  std::byte* to;
  const std::byte* from;
  std::size_t bytes;
};

// From a piece that has come.
struct Arrival {
  std::byte* to;
  std::size_t offset;  // in the piece
  std::size_t bytes;
};

struct LoadPlan {
  std::vector<PartCopy> copies;
  std::map<std::pair<std::size_t, std::size_t>, std::vector<Arrival>> arrivals;  // by owner, piece
};

// What a part's versions look like, whether or not they are here.
struct PartIndex {
  StateView view;
  std::vector<std::size_t> offsets;
  std::size_t bytes = 0;

  explicit PartIndex(const std::string& text)
      : view(parse_vault_index(text)), offsets(vault_offsets(view)) {
    if (!offsets.empty()) {
      const StateSlice& last = view.slices.back();
      bytes = offsets.back() + static_cast<std::size_t>(last.range.size()) *
                                   dtype_bytes(view.tensors[last.tensor].dtype);
    }
  }
};

std::vector<PartIndex> indexes_of(World& world, const std::vector<VaultPart>& parts) {
  std::string mine;
  const bool somewhere = std::any_of(parts.begin(), parts.end(), [&](const VaultPart& part) {
    return !part.is_everywhere(world);
  });
  for (std::size_t owner = 0; owner < parts.size(); ++owner) {
    if (!parts[owner].is_everywhere(world) && parts[owner].teller(owner) == world.rank()) {
      mine += parts[owner].here->index_text() + '\0';
    }
  }
  std::vector<std::string> told;
  if (somewhere) {
    told = all_texts(world, mine);
  }
  std::vector<PartIndex> indexes;
  std::vector<std::size_t> at(told.size());
  for (std::size_t owner = 0; owner < parts.size(); ++owner) {
    if (parts[owner].is_everywhere(world)) {
      indexes.emplace_back(parts[owner].here->index_text());
      continue;
    }
    const auto teller = static_cast<std::size_t>(parts[owner].teller(owner));
    const std::size_t end = told[teller].find('\0', at[teller]);
    indexes.emplace_back(told[teller].substr(at[teller], end - at[teller]));
    at[teller] = end + 1;
  }
  return indexes;
}

class Planner {
 public:
  Planner(const std::vector<VaultPart>& parts, const std::vector<PartIndex>& indexes)
      : parts_(parts),
        indexes_(indexes),
        tensors_(indexes.front().view.tensors),  // the same on all ranks
        held_(tensors_.size()) {
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      numbers_[tensors_[t].title()] = t;
    }
    for (std::size_t owner = 0; owner < indexes.size(); ++owner) {
      const auto& slices = indexes[owner].view.slices;
      for (std::size_t i = 0; i < slices.size(); ++i) {
        held_[slices[i].tensor].emplace_back(owner, i);
      }
    }
  }

  void add(const StateTensor& tensor, const StateSlice& slice) {
    const auto found = numbers_.find(tensor.title());
    TRIREME_CHECK(found != numbers_.end() && tensors_[found->second] == tensor,
                  "expected {} as it was before the loss, found another shape or nothing",
                  {tensor.title()});
    const std::size_t bytes = dtype_bytes(tensor.dtype);
    std::int64_t missing = slice.range.size();
    for (const auto& [owner, i] : held_[found->second]) {
      const StateSlice& part = indexes_[owner].view.slices[i];
      const Range common = intersection(part.range, slice.range);
      if (common.empty()) {
        continue;
      }
      take(owner,
           indexes_[owner].offsets[i] +
               static_cast<std::size_t>(common.begin - part.range.begin) * bytes,
           slice.data + static_cast<std::size_t>(common.begin - slice.range.begin) * bytes,
           static_cast<std::size_t>(common.size()) * bytes);
      missing -= common.size();
    }
    TRIREME_CHECK(missing == 0,
                  "expected all of {} in the ranks' memory, found {} elements missing",
                  {tensor.title(), missing});
  }

  LoadPlan plan;

 private:
  void take(std::size_t owner, std::size_t offset, std::byte* to, std::size_t bytes) {
    if (parts_[owner].here) {
      const auto state = parts_[owner].here->state_bytes(parts_[owner].place);
      plan.copies.push_back({to, state.data() + offset, bytes});
      return;
    }
    for (std::size_t done = 0; done < bytes;) {
      const std::size_t in_piece = (offset + done) % kPartPiece;
      const std::size_t length = std::min(bytes - done, kPartPiece - in_piece);
      plan.arrivals[{owner, (offset + done) / kPartPiece}].push_back({to + done, in_piece, length});
      done += length;
    }
  }

  const std::vector<VaultPart>& parts_;
  const std::vector<PartIndex>& indexes_;
  const std::vector<StateTensor>& tensors_;
  std::map<std::string, std::size_t> numbers_;
  std::vector<std::vector<std::pair<std::size_t, std::size_t>>>
      held_;  // owner and slice, by tensor
};

// One piece, to those who need it; see Note [parts elsewhere].
void move_piece(World& world, int teller, const std::vector<int>& takers, const Span& piece) {
  const bool takes = std::find(takers.begin(), takers.end(), world.rank()) != takers.end();
  if (takers.size() > static_cast<std::size_t>(world.machines())) {
    world.broadcast(piece, teller).wait();
  } else if (world.rank() == teller) {
    for (const int taker : takers) {
      world.send(piece, taker).wait();
    }
  } else if (takes) {
    world.recv(piece, teller).wait();
  }
}

void fetch(World& world,
           const std::vector<VaultPart>& parts,
           const std::vector<PartIndex>& indexes,
           const LoadPlan& plan) {
  std::vector<std::pair<std::size_t, std::size_t>> pieces;  // owner and number
  std::string mine;
  for (std::size_t owner = 0; owner < parts.size(); ++owner) {
    if (parts[owner].is_everywhere(world)) {
      continue;
    }
    for (std::size_t piece = 0; piece * kPartPiece < indexes[owner].bytes; ++piece) {
      pieces.emplace_back(owner, piece);
      mine += plan.arrivals.contains(pieces.back()) ? '1' : '0';
    }
  }
  const std::vector<std::string> needs = all_texts(world, mine);
  std::vector<std::byte> stage(kPartPiece);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    std::vector<int> takers;
    for (int rank = 0; rank < world.size(); ++rank) {
      if (needs[static_cast<std::size_t>(rank)][i] == '1') {
        takers.push_back(rank);
      }
    }
    if (takers.empty()) {
      continue;
    }
    const auto& [owner, number] = pieces[i];
    const VaultPart& part = parts[owner];
    const int teller = part.teller(owner);
    const std::size_t begin = number * kPartPiece;
    std::byte* data =
        teller == world.rank() ? part.here->state_bytes(part.place).data() + begin : stage.data();
    const std::size_t bytes = std::min(kPartPiece, indexes[owner].bytes - begin);
    move_piece(world, teller, takers, {data, static_cast<std::int64_t>(bytes), Dtype::kUint8});
    if (const auto found = plan.arrivals.find(pieces[i]); found != plan.arrivals.end()) {
      for (const Arrival& arrival : found->second) {
        std::memcpy(arrival.to, stage.data() + arrival.offset, arrival.bytes);
      }
    }
  }
}

}  // namespace

void load_parts(World& world,
                const std::vector<VaultPart>& parts,
                const StateView& into,
                bool with_generators) {
  const std::vector<PartIndex> indexes = indexes_of(world, parts);
  Planner planner(parts, indexes);
  const auto make_plan = [&] {
    for (const StateSlice& slice : into.slices) {
      const StateTensor& tensor = into.tensors[slice.tensor];
      if (with_generators || tensor.kind != kRandomKind) {
        planner.add(tensor, slice);
      }
    }
  };
  const bool all_here = std::all_of(
      parts.begin(), parts.end(), [&](const VaultPart& part) { return part.is_everywhere(world); });
  if (all_here) {
    make_plan();
  } else {
    on_all_ranks(world, make_plan);
  }
  for (const PartCopy& copy : planner.plan.copies) {
    std::memcpy(copy.to, copy.from, copy.bytes);
  }
  if (!all_here) {
    fetch(world, parts, indexes, planner.plan);
  }
}

}  // namespace trireme::detail
