// What ranks of stale training keep for the case of a loss, and how others go on with it.

#include "parallel/memory/runs.h"
#include "server/stale_impl.h"
#include "server/standby.h"
#include "trireme/comm/kept_memory.h"
#include "trireme/comm/tell.h"
#include "trireme/core/drill.h"
#include "trireme/core/error.h"
#include "trireme/core/index.h"

namespace trireme {

using detail::concat;
using detail::EngineParts;
using detail::index;

namespace {

// The slices of a view that are a worker's own, or those that are not.
StateView part_of_view(const StateView& view, bool of_worker) {
  StateView part;
  for (const StateSlice& slice : view.slices) {
    const StateTensor& tensor = view.tensors[slice.tensor];
    if (detail::is_of_worker(tensor) == of_worker) {
      part.tensors.push_back(tensor);
      part.slices.push_back({part.tensors.size() - 1, slice.range, slice.data});
    }
  }
  return part;
}

void append(StateView& view, const StateView& more) {
  for (const StateSlice& slice : more.slices) {
    view.tensors.push_back(more.tensors[slice.tensor]);
    view.slices.push_back({view.tensors.size() - 1, slice.range, slice.data});
  }
}

}  // namespace

std::optional<std::int64_t> kept_by_servers(const std::shared_ptr<World>& world,
                                            const Stale& stale) {
  if (stale.replicas == 0 || !launcher_keeps_memory()) {
    return std::nullopt;
  }
  const detail::Standby standby(world,
                                world->size() - stale.servers,
                                stale.bound,
                                detail::KeptVersions::next_number(*world, /*take=*/false));
  return standby.point() ? std::optional(standby.point()->step) : std::nullopt;
}

void StaleEngineBase::Impl::go_on_from_kept() {
  if (stale_.replicas == 0) {
    return;
  }
  standby_ = std::make_unique<detail::Standby>(
      world_, workers_, stale_.bound, detail::KeptVersions::next_number(*world_, /*take=*/true));
  if (!standby_->point()) {
    return;
  }
  EngineParts& e = parts();
  const detail::Standby::Point& point = *standby_->point();
  const auto drill = [&](DrillPoint where) {
    detail::drill_at(where, point.step, ranks_->rank(), ranks_->size());
  };
  drill(DrillPoint::kTakeOver);
  on_all_ranks(*ranks_, [&] {
    const std::vector<StateView> own = standby_->own();
    as_owner([&] {
      worker_->restore([&](const StateView& into) { detail::load_kept(own, into); },
                       standby_->progress());
    });
    if (owns()) {
      detail::load_kept(own, shard_->counts());
      shard_->take_counts();
    }
    shard_->go_on_at(point.step, point.first, [this](std::int64_t version) {
      return standby_->weights(version);
    });
  });
  // The rules of ranks that own nothing count along, as everyone's state says how often.
  std::vector<std::int64_t> updates = e.optimizer->rules().steps();
  ranks_->broadcast(updates, an_owner_).wait();
  e.optimizer->rules().set_steps(std::move(updates));
  first_ = point.first;
  // What step `point.step` computes with.
  const std::int64_t version = shard_->version_for(point.step);
  service_->set_version(version);
  const auto weights = shard_->snapshots().front();
  read_weights([&](std::size_t unit) {
    for (const detail::OwnedPart& part : shard_->weights().parts) {
      if (part.unit == unit) {
        return Span(weights->memory.buffer.data() + part.offset,
                    part.range.size(),
                    shard_->weights().dtype(owner_plan_, part));
      }
    }
    return shard_->owned(unit);
  });
  kept_ = point.notes;
  drill(DrillPoint::kTakenOver);
}

void StaleEngineBase::Impl::check_kept(const char* what) const {
  TRIREME_CHECK(
      standby_ == nullptr || standby_->keeps(),
      "{}: expected keep() before it, as Stale::replicas wants it before the first step, and "
      "again after state(), restore() and go_on_from_newest(), which change what all ranks go "
      "on from",
      {what});
}

void StaleEngineBase::Impl::keep(const Notes& notes) {
  EngineParts& e = parts();
  e.check_between_steps("keep()");
  TRIREME_CHECK(standby_ != nullptr,
                "keep(): expected Stale::replicas of 1, found 0: nothing is kept");
  for (const char* own : {"engine", "first"}) {
    TRIREME_CHECK(
        notes.count(own) == 0, "the note \"{}\" is the engine's own: choose another name", {own});
  }
  if (finished_ || (standby_->keeps() && !computes())) {
    return;
  }
  const EngineState state = as_owner([&] { return worker_->state(); });
  StateView local = part_of_view(state.view, /*of_worker=*/true);
  if (!owns()) {  // parts of frozen parameters, which nobody updates
    append(local, part_of_view(state.view, /*of_worker=*/false));
  }
  Notes all = notes;
  all["first"] = std::to_string(first_);
  shard_->quietly([&] { all["engine"] = worker_->progress(); });
  if (standby_->keeps()) {
    standby_->keep_local(e.steps, local, all);
    if (ranks_->rank() == 0) {
      detail::drill_commit(world_->epoch());
    }
    return;
  }
  StateView part;
  if (owns()) {
    part = part_of_view(state.view, /*of_worker=*/false);
    append(part, shard_->counts());
  }
  agree_on_steps();
  const auto snapshots = shard_->snapshots();
  standby_->begin({part, local, all, snapshots, e.steps});
  if (owns()) {
    shard_->keep_with(
        [this](const detail::Shard::Snapshot& made) { standby_->keep_version(made); });
  }
  ranks_->barrier().wait();  // nobody sends anything before
}

}  // namespace trireme
