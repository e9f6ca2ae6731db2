#include "trireme/checkpoint/vault.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "checkpoint/vault_segment.h"
#include "trireme/comm/kept_memory.h"
#include "trireme/comm/tell.h"
#include "trireme/core/error.h"

namespace trireme {
namespace {

using detail::concat;
using detail::VaultSegment;

using Segments = std::vector<std::shared_ptr<VaultSegment>>;

// Which vault of its world is made now: those after a loss are made in the same order.
std::int64_t number_of_next(std::int64_t epoch) {
  static std::int64_t last_epoch = -1;
  static std::int64_t count = 0;
  count = epoch == std::exchange(last_epoch, epoch) ? count + 1 : 0;
  return count;
}

// The ranks' segments of an epoch that hold `step`, by rank; empty where one is missing.
Segments holders(const Segments& all, std::int64_t epoch, std::int64_t step) {
  Segments found;
  for (const auto& segment : all) {
    const detail::VaultOwner& owner = segment->owner();
    if (owner.epoch == epoch && segment->versions().contains(step)) {
      found.resize(static_cast<std::size_t>(owner.ranks));
      found.at(static_cast<std::size_t>(owner.rank)) = segment;
    }
  }
  const bool whole = std::all_of(found.begin(), found.end(), [](const auto& each) { return each; });
  return whole ? found : Segments();
}

struct Copy {
  std::byte* to;
  const std::byte* from;
  std::size_t bytes;
};

}  // namespace

Vault::Vault(std::shared_ptr<World> world)
    : world_(std::move(world)), use_(number_of_next(world_->epoch())) {
  choose();
}

Vault::~Vault() = default;

void Vault::choose() {
  Segments all;
  for (const FileDescriptor& memory : kept_memory()) {
    auto segment = VaultSegment::open(memory);
    if (segment && segment->owner().use == use_) {
      all.push_back(std::move(segment));
    }
  }
  std::int64_t epoch = -1;
  std::int64_t step = -1;
  for (const auto& segment : all) {
    for (const auto& [candidate, place] : segment->versions()) {
      const std::int64_t of = segment->owner().epoch;
      if (std::pair(candidate, of) > std::pair(step, epoch) &&
          !holders(all, of, candidate).empty()) {
        step = candidate;
        epoch = of;
      }
    }
  }
  // Rank 0's choice: another may have looked while memory of this epoch was added.
  std::vector<std::int64_t> chosen = {epoch, step};
  world_->broadcast(chosen, 0).wait();
  if (chosen[1] < 0) {
    return;
  }
  earlier_ = holders(all, chosen[0], chosen[1]);
  on_all_ranks(*world_, [&] {
    TRIREME_CHECK(!earlier_.empty(),
                  "expected the state of step {} in the memory that the launcher keeps, found it "
                  "on other ranks only",
                  {chosen[1]});
  });
  const VaultSegment& first = *earlier_.front();
  newest_ = {.step = chosen[1],
             .ranks = first.owner().ranks,
             .notes = first.notes(first.versions().at(chosen[1]))};
}

void Vault::load(const StateView& into) const {
  TRIREME_CHECK(newest_, "Vault::load: there is nothing to go on from");
  std::vector<StateView> views;
  views.reserve(earlier_.size());
  for (const auto& segment : earlier_) {
    views.push_back(segment->state(segment->versions().at(newest_->step)));
  }
  const std::vector<StateTensor>& tensors = views.front().tensors;  // the same on all ranks
  std::map<std::string, std::size_t> index;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    index[tensors[t].title()] = t;
  }
  std::vector<std::vector<const StateSlice*>> held(tensors.size());
  for (const StateView& view : views) {
    for (const StateSlice& slice : view.slices) {
      held[slice.tensor].push_back(&slice);
    }
  }
  std::vector<Copy> copies;
  for (const StateSlice& slice : into.slices) {
    const StateTensor& tensor = into.tensors[slice.tensor];
    const bool random = tensor.kind == kRandomKind;
    if (random && newest_->ranks != world_->size()) {
      continue;
    }
    const auto found = index.find(tensor.title());
    TRIREME_CHECK(found != index.end() && tensors[found->second] == tensor,
                  "expected {} as it was before the loss, found another shape or nothing",
                  {tensor.title()});
    const std::size_t bytes = dtype_bytes(tensor.dtype);
    std::int64_t missing = slice.range.size();
    for (const StateSlice* part : held[found->second]) {
      const Range common = intersection(part->range, slice.range);
      if (common.empty()) {
        continue;
      }
      copies.push_back(
          {slice.data + static_cast<std::size_t>(common.begin - slice.range.begin) * bytes,
           part->data + static_cast<std::size_t>(common.begin - part->range.begin) * bytes,
           static_cast<std::size_t>(common.size()) * bytes});
      missing -= common.size();
    }
    TRIREME_CHECK(missing == 0,
                  "expected all of {} in the ranks' memory, found {} elements missing",
                  {tensor.title(), missing});
  }
  for (const Copy& copy : copies) {
    std::memcpy(copy.to, copy.from, copy.bytes);
  }
}

void Vault::make_room(const StateView& state, const Notes& notes) {
  // Each rank would find its own part of what all of them need.
  std::vector<std::int64_t> bytes = {
      static_cast<std::int64_t>(VaultSegment::bytes_for(state, notes))};
  world_->all_reduce(bytes).wait();
  on_all_ranks(*world_, [&] {
    try {
      device::check_available(static_cast<std::size_t>(bytes[0]));
      own_ =
          VaultSegment::make({world_->epoch(), use_, world_->rank(), world_->size()}, state, notes);
    } catch (const MemoryError& error) {
      throw MemoryError(concat(
          "{}; an elastic job keeps two copies of its state in memory, and four for a moment after "
          "a loss (docs/elastic.md): train a smaller model, use a larger machine, or leave out "
          "--elastic and --restart and save checkpoints instead",
          {error.what()}));
    }
    keep_memory(world_->epoch(), use_, own_->memory());
  });
}

void Vault::save(std::int64_t step, const StateView& state, const Notes& notes) {
  // New memory, which may not be there, is for the first save or notes that have grown.
  std::vector<std::int32_t> news = {own_ && own_->save(step, state, notes) ? 0 : 1,
                                    epoch_is_over() ? 1 : 0};
  world_->all_reduce(news, ReduceOp::kMax).wait();
  if (news[0] != 0) {
    make_room(state, notes);
    TRIREME_ASSERT(own_->save(step, state, notes), "a vault has no room for what it was made for");
    world_->barrier().wait();
  }
  if (!std::exchange(has_saved_, true)) {
    earlier_.clear();  // nobody will need it again
    newest_.reset();
    if (world_->rank() == 0 && world_->epoch() > 0) {
      forget_memory_before(world_->epoch(), use_);
    }
  }
  if (news[1] != 0) {
    throw CommError(CommError::Reason::kPeerLeft,
                    -1,
                    concat("ranks come or leave after step {}: this world ends", {step}));
  }
}

}  // namespace trireme
