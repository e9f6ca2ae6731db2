// What all ranks of stale training have together: the newest weights, and the state of all.

#include "parallel/memory/runs.h"
#include "parallel/model/broadcast.h"
#include "server/stale_impl.h"
#include "trireme/comm/tell.h"
#include "trireme/core/error.h"
#include "trireme/core/index.h"

namespace trireme {

using detail::concat;
using detail::EngineParts;
using detail::index;

// Nobody has sent gradients that are not in the weights, or sends any before all have read them.
void StaleEngineBase::Impl::read_newest() {
  shard_->flush();  // with its lock: what its thread has written is seen here
  read_weights([this](std::size_t unit) { return shard_->owned(unit); });
}

void StaleEngineBase::Impl::read_weights(const std::function<Span(std::size_t unit)>& own) {
  EngineParts& e = parts();
  write_parameters([&] {
    for (std::size_t u = 0; u < e.plan.units.size(); ++u) {
      const detail::Unit& unit = e.plan.units[u];
      const std::int64_t numel = unit.layout.total_numel();
      const device::Buffer memory(unit.bytes());
      const Span whole(memory.data(), numel, unit.dtype);
      ranks_->all_gather(own(u), whole, owner_plan_.ownership.counts(u)).wait();
      e.memory->write(u, {0, numel}, whole);
    }
  });
  ranks_->barrier().wait();
}

// All ranks have taken as many steps, whose gradients are in the weights: everyone has an answer
// from every owner (ClockTable::next). Servers learn how many that are.
void StaleEngineBase::Impl::agree_on_steps() {
  EngineParts& e = parts();
  std::vector<std::int64_t> steps(index(ranks_->size()));
  ranks_->all_gather(std::vector<std::int64_t>{e.steps}, steps).wait();
  for (int rank = 1; rank < workers_; ++rank) {
    TRIREME_CHECK(steps[index(rank)] == steps[0],
                  "StaleEngine: expected this call after as many steps on every rank, found {} on "
                  "rank 0 and {} on rank {}",
                  {steps[0], steps[index(rank)], rank});
  }
  e.steps = steps[0];
}

// A checkpoint has one: rank 0's.
void StaleEngineBase::Impl::share_loss_scale() {
  EngineParts& e = parts();
  if (!e.scaler) {
    return;
  }
  const LossScaler::State own = e.scaler->state();
  std::vector<double> scale = {own.scale};
  std::vector<std::int64_t> steps = {own.good_steps, own.skipped};
  ranks_->broadcast(scale, 0).wait();
  ranks_->broadcast(steps, 0).wait();
  e.scaler->restore({scale[0], steps[0], steps[1]});
}

// Everyone goes on from the newest weights, and what the owners count is everyone's.
void StaleEngineBase::Impl::begin_here() {
  EngineParts& e = parts();
  agree_on_steps();
  read_newest();
  std::vector<std::int64_t> updates = e.optimizer->rules().steps();
  updates.push_back(stale_.order == Order::kClock ? e.steps : shard_->version());
  ranks_->broadcast(updates, an_owner_).wait();
  const std::int64_t version = updates.back();
  updates.pop_back();
  e.optimizer->rules().set_steps(std::move(updates));
  for (const at::Tensor& buffer : e.model->buffers()) {
    detail::broadcast_tensor(buffer, *ranks_, 0);
  }
  share_loss_scale();
  first_ = e.steps;
  if (standby_) {  // the next keep() begins with what there is now
    standby_->stop();
    shard_->keep_with({});
  }
  service_->set_version(version);
  // Nobody goes on before all have begun: gradients that come sooner would be forgotten.
  on_all_ranks(*ranks_, [&] { shard_->begin_at(e.steps, version); });
}

void StaleEngineBase::Impl::with_newest(const std::function<void()>& body) {
  EngineParts& e = parts();
  e.check_between_steps("with_newest()");
  if (!finished_) {
    agree_on_steps();
  }
  std::vector<device::Buffer> parameters;
  std::vector<std::pair<at::Tensor, at::Tensor>> buffers;
  const auto runs = [&](const auto& of) {
    for (std::size_t u = 0; u < e.plan.units.size(); ++u) {
      const std::int64_t numel = e.plan.units[u].layout.total_numel();
      of(u, Range{0, numel}, Span(parameters[u].data(), numel, e.plan.units[u].dtype));
    }
  };
  for (const detail::Unit& unit : e.plan.units) {
    parameters.emplace_back(unit.bytes());
  }
  runs([&](std::size_t u, Range range, const Span& copy) { e.memory->read(u, range, copy); });
  for (const at::Tensor& buffer : e.model->buffers()) {
    buffers.emplace_back(buffer.clone(), buffer);
    detail::broadcast_tensor(buffer, *ranks_, 0);
  }
  read_newest();
  const auto give_back = [&] {
    write_parameters([&] {
      runs([&](std::size_t u, Range range, const Span& copy) { e.memory->write(u, range, copy); });
    });
    for (const auto& [copy, buffer] : buffers) {
      detail::write_elements(buffer, copy);
    }
  };
  try {
    body();
  } catch (...) {
    give_back();
    throw;
  }
  give_back();
}

// A rank's own engine has one generator, and writes its buffers.
StateView StaleEngineBase::Impl::of_all_ranks(const StateView& own, bool saved) const {
  StateView view;
  std::vector<std::size_t> place(own.tensors.size());
  for (std::size_t i = 0; i < own.tensors.size(); ++i) {
    place[i] = view.tensors.size();
    if (own.tensors[i].kind != kRandomKind) {
      view.tensors.push_back(own.tensors[i]);
      continue;
    }
    place[i] += index(ranks_->rank());
    for (int rank = 0; rank < ranks_->size(); ++rank) {
      view.tensors.push_back(own.tensors[i]);
      view.tensors.back().name = concat("rank-", rank);
    }
  }
  for (const StateSlice& slice : own.slices) {
    if (!saved || own.tensors[slice.tensor].kind != kBufferKind || ranks_->rank() == 0) {
      view.slices.push_back({place[slice.tensor], slice.range, slice.data});
    }
  }
  return view;
}

void StaleEngineBase::Impl::go_on_from_newest() {
  parts().check_between_steps("go_on_from_newest()");
  if (!finished_) {
    begin_here();
  }
}

std::size_t StaleEngineBase::Impl::state_bytes() {
  return as_owner([&] { return worker_->state(); }).view.size_bytes();
}

EngineState StaleEngineBase::Impl::state() {
  parts().check_between_steps("state()");
  if (!finished_) {
    begin_here();
  }
  EngineState own = as_owner([&] { return worker_->state(); });
  return {of_all_ranks(own.view, /*saved=*/true), own.owner};
}

void StaleEngineBase::Impl::restore(const std::function<void(const StateView& into)>& fill,
                                    const std::string& progress) {
  TRIREME_CHECK(!finished_, "restore() was called after finish(): build another engine");
  on_all_ranks(*ranks_, [&] {
    as_owner([&] {
      worker_->restore([&](const StateView& own) { fill(of_all_ranks(own, /*saved=*/false)); },
                       progress);
    });
  });
  begin_here();
  on_all_ranks(*ranks_, [&] { shard_->goes_on_from(parts().steps); });
  follow_from_here();
}

StaleUse StaleEngineBase::Impl::use() {
  StaleUse use{.staleness = shard_->staleness(), .held_up = shard_->held_up()};
  use.held_up.resize(index(ranks_->size()), 0);
  ranks_->all_reduce(use.staleness).wait();
  ranks_->all_reduce(use.held_up, ReduceOp::kMax).wait();
  return use;
}

MemoryReport StaleEngineBase::Impl::memory_report() {
  MemoryReport report = worker_->memory_report();  // of this rank
  const MemoryUse mine = report.ranks.front();
  report.ranks.resize(index(ranks_->size()));
  constexpr std::int64_t kBytes = sizeof(MemoryUse);
  ranks_
      ->all_gather({&mine, kBytes, Dtype::kUint8},
                   {report.ranks.data(), kBytes * ranks_->size(), Dtype::kUint8})
      .wait();
  return report;
}

}  // namespace trireme
