// Parameters whole and writable for a while: EngineBase::gathered().

#include <ATen/ops/empty_strided.h>

#include "parallel/engine_core.h"
#include "parallel/half_autocast.h"
#include "parallel/operator_watch.h"
#include "trireme/comm/first_failure.h"
#include "trireme/core/error.h"
#include "trireme/tensor/span.h"

namespace trireme::detail {

GatherScope::GatherScope(EngineCore& core, const std::vector<std::size_t>& parameters)
    : core_(core), alive_(core.alive_), parameters_(parameters) {
  const Unwatched guard;
  const at::NoGradGuard no_grad;
  std::size_t bytes = 0;
  std::vector<at::Tensor> wholes;  // of all, before any changes: there may not be room for them
  for (const std::size_t i : parameters_) {
    bytes += wholes.emplace_back(core_.whole(i)).nbytes();
  }
  charge_ = core_.ledger_->charge(MemoryCategory::kGather, bytes);
  for (std::size_t k = 0; k < parameters_.size(); ++k) {
    core_.parameters_[parameters_[k]].tensor.set_data(wholes[k]);
  }
  ++core_.open_scopes_;
}

void GatherScope::close() {
  if (!open_) {
    return;
  }
  open_ = false;
  TRIREME_CHECK(!alive_.expired(),
                "a gathered() scope outlived its engine: what was written in it is not kept");
  --core_.open_scopes_;
  const Unwatched guard;
  const at::NoGradGuard no_grad;
  Communicator& ranks = *core_.ranks_;
  // All of them or none are taken, on all ranks: else one would wait for what another refuses.
  std::string problem;
  for (const std::size_t i : parameters_) {
    const Parameter& parameter = core_.parameters_[i];
    const Unit& unit = core_.units_[core_.places_[i].unit];
    if (parameter.tensor.sizes() != at::IntArrayRef(parameter.sizes) ||
        parameter.tensor.scalar_type() != scalar_type_of(unit.dtype)) {
      problem = concat("parameter ",
                       parameter.name,
                       " has another shape or dtype at the end of gathered(): write to it with "
                       "copy_()");
      break;
    }
  }
  if (const auto failure = first_failure(ranks, problem)) {
    for (const std::size_t i : parameters_) {
      core_.memory_->attach(i);
    }
    forget_casts();
    charge_ = {};
    throw ConfigError(!problem.empty() ? problem
                                       : concat("rank ", failure->rank, ": ", failure->reason));
  }
  std::vector<at::Tensor> values;
  for (const std::size_t i : parameters_) {
    const Parameter& parameter = core_.parameters_[i];
    at::Tensor whole = parameter.tensor.detach();
    if (whole.strides() != at::IntArrayRef(parameter.strides)) {
      at::Tensor ordered = at::empty_strided(parameter.sizes, parameter.strides, whole.options());
      whole = ordered.copy_(whole);
    }
    if (parameter.numel > 0) {
      ranks
          .broadcast({whole.data_ptr(), static_cast<std::int64_t>(whole.nbytes()), Dtype::kUint8},
                     0)
          .wait();
    }
    values.push_back(whole);
  }
  ranks.barrier().wait();  // all have read what is now written
  for (std::size_t k = 0; k < parameters_.size(); ++k) {
    const std::size_t i = parameters_[k];
    const Place& place = core_.places_[i];
    const Unit& unit = core_.units_[place.unit];
    const std::int64_t offset = unit.layout.offset(place.index);
    const Range range{offset, offset + core_.parameters_[i].numel};
    at::Tensor before = at::empty_like(values[k]);
    core_.memory_->read(place.unit, range, static_cast<std::byte*>(before.data_ptr()));
    core_.memory_->write(
        place.unit, range, static_cast<const std::byte*>(values[k].const_data_ptr()));
    core_.optimizer_->parameters_changed(place.unit, place.index, before, values[k]);
    core_.memory_->attach(i);
    core_.parameters_[i].tensor.unsafeGetTensorImpl()->bump_version();
  }
  core_.memory_->finish_update();
  forget_casts();
  charge_ = {};
}

}  // namespace trireme::detail
