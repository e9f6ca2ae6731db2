#include "checkpoint/kept_versions.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "device/host/segment.h"
#include "trireme/comm/kept_memory.h"
#include "trireme/comm/tell.h"
#include "trireme/core/error.h"
#include "trireme/core/index.h"

namespace trireme::detail {
namespace {

// Those of vaults are counted from 0 (VaultOwner::use).
constexpr std::int64_t kFirstUse = 1 << 20;
constexpr std::int64_t kUsesOfOne = std::int64_t{1} << 32;

}  // namespace

std::int64_t KeptVersions::next_number(const World& world, bool take) {
  static std::int64_t last_epoch = -1;
  static std::int64_t next = 0;
  if (std::exchange(last_epoch, world.epoch()) != world.epoch()) {
    next = 0;
  }
  return take ? next++ : next;
}

std::int64_t KeptVersions::use_of(std::int64_t generation, std::int64_t shelf) const {
  return kFirstUse + number_ * kUsesOfOne + generation * static_cast<std::int64_t>(own_.size()) +
         shelf;
}

KeptVersions::KeptVersions(std::shared_ptr<World> world, int shelves, std::int64_t number)
    : world_(std::move(world)), number_(number), own_(index(shelves)) {
  // By epoch and generation.
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<std::vector<Segment>>> worlds;
  for (const FileDescriptor& memory : kept_memory()) {
    auto segment = VaultSegment::open(memory);
    if (!segment || segment->owner().use < use_of(0, 0)) {
      continue;
    }
    const VaultOwner& owner = segment->owner();
    const std::int64_t place = owner.use - use_of(0, 0);
    if (place >= kUsesOfOne || segment->versions().empty()) {
      continue;
    }
    earlier_.insert(owner.use);
    auto& ranks = worlds[{owner.epoch, place / shelves}];
    ranks.resize(index(owner.ranks), std::vector<Segment>(index(shelves)));
    ranks[index(owner.rank)][static_cast<std::size_t>(place % shelves)] = std::move(segment);
  }
  for (auto& [which, ranks] : worlds) {
    if (which.first < world_->epoch() &&
        std::ranges::all_of(ranks, [](const auto& its) { return its.back() != nullptr; })) {
      found_ = std::move(ranks);
    }
  }
}

KeptVersions::Segment KeptVersions::found(int shelf, int rank) const {
  return found_[index(rank)][index(shelf)];
}

std::vector<std::int64_t> KeptVersions::versions(int shelf, int rank) const {
  std::vector<std::int64_t> all;
  if (const Segment segment = found(shelf, rank)) {
    for (const auto& [version, place] : segment->versions()) {
      all.push_back(version);
    }
  }
  return all;
}

Notes KeptVersions::notes(int shelf, int rank, std::int64_t version) const {
  return found(shelf, rank)->notes(found(shelf, rank)->versions().at(version));
}

StateView KeptVersions::state(int shelf, int rank, std::int64_t version) const {
  return found(shelf, rank)->state(found(shelf, rank)->versions().at(version));
}

void KeptVersions::make_room(const std::vector<Shelf>& shelves) {
  std::vector<VaultLayout> layouts;
  std::vector<std::int64_t> bytes = {0};
  for (const Shelf& shelf : shelves) {
    layouts.push_back(VaultLayout::of(shelf.like, shelf.notes, shelf.places));
    bytes[0] += shelf.like.slices.empty() ? 0 : static_cast<std::int64_t>(layouts.back().bytes());
  }
  world_->all_reduce(bytes).wait();
  on_all_ranks(*world_, [&] {
    try {
      device::check_available(static_cast<std::size_t>(bytes[0]));
      ++generation_;
      for (std::size_t i = 0; i < shelves.size(); ++i) {
        own_[i].reset();
        if (!shelves[i].like.slices.empty()) {
          const std::int64_t use = use_of(generation_, static_cast<std::int64_t>(i));
          own_[i] = VaultSegment::make({world_->epoch(), use, world_->rank(), world_->size()},
                                       layouts[i]);
          keep_memory(world_->epoch(), use, own_[i]->memory());
        }
      }
    } catch (const MemoryError& error) {
      throw MemoryError(concat(
          "{}; replicas are two copies of what owners have, and of the weights as many as ranks "
          "may "
          "be apart, and twice as many for a moment after a loss (docs/synchronisation.md): train "
          "a "
          "smaller model, use a larger machine, a smaller --staleness, or --save-every instead of "
          "--replicas",
          {error.what()}));
    }
  });
}

void KeptVersions::keep(int shelf,
                        std::int64_t version,
                        const StateView& state,
                        const Notes& notes) {
  const Segment& segment = own_[index(shelf)];
  if (segment && !segment->save(version, state, notes)) {
    throw Error(
        concat("what rank {} keeps for the case of a loss has become another one in version {}: a "
               "buffer has another shape than in the beginning, or notes are longer by far",
               {world_->rank(), version}));
  }
}

void KeptVersions::begin() {
  world_->barrier().wait();
  for (const std::int64_t use : earlier_) {
    forget_memory_before(world_->epoch(), use);
  }
  earlier_.clear();
  for (std::int64_t i = 0; generation_ > 0 && i < static_cast<std::int64_t>(own_.size()); ++i) {
    forget_memory_before(world_->epoch() + 1, use_of(generation_ - 1, i));
  }
  found_.clear();
}

void load_kept(const std::vector<StateView>& kept, const StateView& into) {
  std::map<std::string, std::pair<const StateView*, const StateSlice*>> there;
  for (const StateView& view : kept) {
    for (const StateSlice& slice : view.slices) {
      there[view.tensors[slice.tensor].title()] = {&view, &slice};
    }
  }
  std::vector<std::pair<const StateSlice*, const StateSlice*>> copies;
  for (const StateSlice& slice : into.slices) {
    const StateTensor& tensor = into.tensors[slice.tensor];
    const auto found = there.find(tensor.title());
    TRIREME_CHECK(found != there.end() &&
                      found->second.first->tensors[found->second.second->tensor] == tensor &&
                      found->second.second->range == slice.range,
                  "expected {} as it was before the loss, found another shape or nothing",
                  {tensor.title()});
    copies.emplace_back(&slice, found->second.second);
  }
  for (const auto& [to, from] : copies) {
    std::memcpy(
        to->data,
        from->data,
        static_cast<std::size_t>(to->range.size()) * dtype_bytes(into.tensors[to->tensor].dtype));
  }
}

}  // namespace trireme::detail
