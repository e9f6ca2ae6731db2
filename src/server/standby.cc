#include "server/standby.h"

#include <algorithm>
#include <iterator>
#include <set>

#include "trireme/core/environment.h"
#include "trireme/core/error.h"
#include "trireme/core/index.h"

namespace trireme::detail {
namespace {

constexpr const char* kFirstNote = "first";
constexpr const char* kEngineNote = "engine";

}  // namespace

Standby::Standby(std::shared_ptr<World> world, int workers, std::int64_t bound, std::int64_t number)
    : world_(std::move(world)),
      workers_(workers),
      bound_(bound),
      memory_(world_, kShelves, number) {
  if (memory_.ranks() != world_->size()) {
    return;  // nothing is there: the number of ranks stays what it is (check_elastic)
  }
  // What every rank has: owners a part, workers what is their own.
  std::set<std::int64_t> common;
  bool first = true;
  for (int rank = 0; rank < world_->size(); ++rank) {
    for (const int shelf : {kPart, kLocal}) {
      const std::vector<std::int64_t> versions = memory_.versions(shelf, rank);
      if (versions.empty() || (shelf == kLocal && rank >= workers_)) {
        continue;
      }
      std::set<std::int64_t> both;
      for (const std::int64_t version : versions) {
        if (first || common.contains(version)) {
          both.insert(version);
        }
      }
      common = std::move(both);
      first = false;
    }
  }
  // Of ranks that go on together there is always one. Gradients of one that has left are not waited
  // for, and it has nothing of the versions since.
  TRIREME_CHECK(
      !common.empty(),
      "Stale::replicas: what was kept before the loss cannot be gone on from, since a rank "
      "had called finish() long before the others: resume from a checkpoint, or give every "
      "rank as many steps");
  Point point{.step = *common.rbegin(), .notes = memory_.notes(kLocal, 0, *common.rbegin())};
  point.first = parse_integer(point.notes.at(kFirstNote)).value_or(0);
  point.notes.erase(kFirstNote);
  point.notes.erase(kEngineNote);
  point_ = std::move(point);
}

std::vector<StateView> Standby::own() const {
  const int rank = world_->rank();
  std::vector<StateView> views;
  if (rank >= workers_) {
    // A server has no buffers of its own; what it has of them, nobody sees. The rest of it that is
    // no owner's does not change, so that any version will do.
    views.push_back(memory_.state(kLocal, rank, memory_.versions(kLocal, rank).front()));
    const StateView first = memory_.state(kLocal, 0, point_->step);
    StateView buffers{first.tensors, {}};
    std::ranges::copy_if(first.slices, std::back_inserter(buffers.slices), [&](const auto& slice) {
      return is_of_worker(first.tensors[slice.tensor]);
    });
    views.push_back(std::move(buffers));
  } else {
    views.push_back(memory_.state(kLocal, rank, point_->step));
  }
  if (!memory_.versions(kPart, rank).empty()) {
    views.push_back(memory_.state(kPart, rank, point_->step));
  }
  return views;
}

std::string Standby::progress() const {
  return memory_.notes(kLocal, world_->rank() < workers_ ? world_->rank() : 0, point_->step)
      .at(kEngineNote);
}

const std::byte* Standby::weights(std::int64_t version) const {
  return memory_.state(kWeights, world_->rank(), version).slices.at(0).data;
}

StateView Standby::view_of(const Shard::Snapshot& weights) const {
  const auto bytes = static_cast<std::int64_t>(weights.memory.buffer.size_bytes());
  StateView view;
  view.tensors = {{"served", concat("rank-", world_->rank()), Dtype::kUint8, {bytes}, {}}};
  view.slices = {{0, {0, bytes}, weights.memory.buffer.data()}};
  return view;
}

void Standby::begin(const Kept& kept) {
  part_ = kept.part;
  const int places = static_cast<int>(bound_) + 2;
  std::vector<KeptVersions::Shelf> shelves(kShelves);
  shelves[kPart] = {.like = part_, .notes = {}};
  const bool owns = !part_.slices.empty();
  if (owns) {
    shelves[kWeights] = {.like = view_of(*kept.weights.front()), .notes = {}, .places = places};
  }
  shelves[kLocal] = {.like = kept.local, .notes = kept.notes, .places = places};
  memory_.make_room(shelves);
  if (owns) {
    for (const auto& weights : kept.weights) {
      memory_.keep(kWeights, weights->version, view_of(*weights));
    }
    memory_.keep(kPart, kept.version, part_);
  }
  memory_.keep(kLocal, kept.version, kept.local, kept.notes);
  memory_.begin();
  point_.reset();
  keeps_ = true;
}

void Standby::keep_version(const Shard::Snapshot& weights) {
  memory_.keep(kWeights, weights.version, view_of(weights));
  memory_.keep(kPart, weights.version, part_);
}

void Standby::keep_local(std::int64_t step, const StateView& local, const Notes& notes) {
  memory_.keep(kLocal, step, local, notes);
}

}  // namespace trireme::detail
