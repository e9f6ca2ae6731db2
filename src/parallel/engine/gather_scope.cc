// Parameters whole and writable for a while: EngineBase::gathered().

#include "parallel/engine/gather_scope.h"

#include <algorithm>
#include <exception>
#include <set>

#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>

#include "parallel/memory/runs.h"
#include "parallel/model/broadcast.h"
#include "parallel/model/operator_watch.h"
#include "trireme/comm/tell.h"
#include "trireme/core/error.h"
#include "trireme/core/log.h"
#include "trireme/tensor/span.h"

namespace trireme {
namespace detail {

GatherScope::GatherScope(EngineParts& parts, std::vector<std::size_t> parameters)
    : parts_(parts), alive_(parts.alive), parameters_(std::move(parameters)) {
  const Unwatched guard;
  const at::NoGradGuard no_grad;
  std::size_t bytes = 0;
  std::vector<at::Tensor> wholes;  // of all, before any changes: there may not be room for them
  for (const std::size_t i : parameters_) {
    bytes += wholes.emplace_back(parts_.whole(i)).nbytes();
  }
  charge_ = parts_.ledger->charge(MemoryCategory::kGather, bytes);
  for (std::size_t k = 0; k < parameters_.size(); ++k) {
    parts_.plan.parameters[parameters_[k]].tensor.set_data(wholes[k]);
  }
  parts_.phase.enter(Phase::kGathered);
}

void GatherScope::check() const {
  for (const std::size_t i : parameters_) {
    const Parameter& parameter = parts_.plan.parameters[i];
    TRIREME_CHECK(real_sizes(parameter.tensor) == parameter.sizes &&
                      parameter.tensor.is_complex() == parameter.complex &&
                      c10::toRealValueType(parameter.tensor.scalar_type()) ==
                          scalar_type_of(parts_.plan.unit_of(i).dtype),
                  "parameter ",
                  parameter.name,
                  " has another shape or dtype at the end of gathered(): write to it with copy_()");
  }
}

at::Tensor GatherScope::agreed_values(std::size_t i) const {
  const Parameter& parameter = parts_.plan.parameters[i];
  at::Tensor whole = real_values(parameter).detach();
  if (whole.strides() != at::IntArrayRef(parameter.strides)) {
    at::Tensor ordered = at::empty_strided(parameter.sizes, parameter.strides, whole.options());
    whole = ordered.copy_(whole);
  }
  if (!parts_.plan.device.is_host()) {
    broadcast_tensor(whole, *parts_.ranks);
  } else if (parameter.numel > 0) {
    parts_.ranks->broadcast(run_of(whole), 0).wait();
  }
  return whole;
}

void GatherScope::close() {
  if (!open_) {
    return;
  }
  open_ = false;
  TRIREME_CHECK(!alive_.expired(),
                "a gathered() scope outlived its engine: what was written in it is not kept");
  parts_.phase.enter(Phase::kBetweenSteps);
  const Unwatched guard;
  const at::NoGradGuard no_grad;
  // All of them or none are taken, on all ranks: else one would wait for what another refuses.
  try {
    on_all_ranks(*parts_.ranks, [this] { check(); });
  } catch (const ConfigError&) {
    for (const std::size_t i : parameters_) {
      parts_.memory->attach(i);
    }
    forget_casts();
    charge_ = {};
    throw;
  }
  std::vector<at::Tensor> values;
  for (const std::size_t i : parameters_) {
    values.push_back(agreed_values(i));
  }
  Update update(parts_.plan, *parts_.memory);
  const bool on_disk = parts_.optimizer->memory().disk() != nullptr;
  std::exception_ptr failure;     // of a disk, which may fail on some ranks only
  std::set<std::size_t> rounded;  // units
  for (std::size_t k = 0; k < parameters_.size(); ++k) {
    const std::size_t i = parameters_[k];
    const std::size_t unit = parts_.plan.places[i].unit;
    const Range range = parts_.plan.range_of(i);
    at::Tensor before = at::empty_like(values[k]);
    parts_.memory->read(unit, range, run_of(before));
    if (parts_.plan.units[unit].rounding) {
      rounded.insert(unit);
    } else {
      parts_.memory->write(unit, range, const_run_of(values[k]));
    }
    try {
      parts_.optimizer->memory().parameter_changed(i, before, values[k]);
    } catch (const DataError&) {
      failure = std::current_exception();
    }
    parts_.memory->attach(i);
    update.changed(i);
  }
  for (const std::size_t unit : rounded) {
    parts_.optimizer->memory().round_masters(unit);
    update.written(unit);
  }
  update.finish();
  charge_ = {};
  if (on_disk) {
    try {
      on_all_ranks(*parts_.ranks, [&] {
        parts_.optimizer->memory().flush();
        if (failure) {
          std::rethrow_exception(failure);
        }
      });
    } catch (const DataError&) {
      parts_.phase.enter(Phase::kHalfLoaded);
      throw;
    }
  }
}

}  // namespace detail

Gathered::Gathered(std::unique_ptr<detail::GatherScope> scope) : scope_(std::move(scope)) {}
Gathered::Gathered(Gathered&&) noexcept = default;

Gathered::~Gathered() {
  if (scope_ && scope_->open()) {
    try {
      scope_->close();
    } catch (const std::exception& error) {
      log(LogLevel::kError, detail::concat("the end of gathered() failed: ", error.what()));
    }
  }
}

void Gathered::close() {
  TRIREME_CHECK(scope_, "close(): this gathered() scope was moved from: close the one it became");
  scope_->close();
}

Gathered EngineBase::gathered(const std::vector<std::string>& names) {
  detail::EngineParts& e = parts();
  e.check_alive();
  TRIREME_CHECK(e.phase.is(detail::Phase::kBetweenSteps, detail::Phase::kGathered),
                "gathered()",
                e.in_the_middle());
  std::vector<std::size_t> wanted;
  for (const std::string& name : names) {
    wanted.push_back(e.unchanged->parameter_named(name));
  }
  for (std::size_t i = 0; names.empty() && i < e.plan.parameters.size(); ++i) {
    wanted.push_back(i);
  }
  e.check_no_scope("gathered()");
  std::sort(wanted.begin(), wanted.end());
  wanted.erase(std::unique(wanted.begin(), wanted.end()), wanted.end());
  e.unchanged->check();
  return Gathered(std::make_unique<detail::GatherScope>(e, std::move(wanted)));
}

}  // namespace trireme
