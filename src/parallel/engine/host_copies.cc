#include "parallel/engine/host_copies.h"

#include <algorithm>
#include <chrono>

#include "device/driver.h"
#include "trireme/core/seconds_since.h"

namespace trireme::detail {

HostCopies::HostCopies(const PartContext& context, const std::vector<StateWindow>& windows)
    : gpu_(context.plan.device) {
  std::size_t gradients = 0;
  std::size_t parameters = 0;
  for (const StateWindow& window : windows) {
    const Unit& unit = context.plan.units[window.unit];
    const auto numel = static_cast<std::size_t>(window.range.size());
    gradients = std::max(gradients, numel * dtype_bytes(unit.sum_dtype()));
    parameters = std::max(parameters, numel * dtype_bytes(unit.dtype));
  }
  for (Slot& slot : slots_) {
    slot.gradients = device::Buffer::visible_to(gpu_, gradients);
    slot.parameters = device::Buffer::visible_to(gpu_, parameters);
  }
  charge_ = context.ledger.charge(MemoryCategory::kHost, kSlots * (gradients + parameters));
  down_ = device::driver(gpu_).make_stream();
  up_ = device::driver(gpu_).make_stream();
}

void HostCopies::begin() {
  const device::Event before = device::driver(gpu_).stream().record();
  down_->wait(before);
  up_->wait(before);
}

void HostCopies::fetch(std::size_t turn, const std::vector<Fetch>& gradients) {
  Slot& slot = slots_[turn % kSlots];
  for (const Fetch& run : gradients) {
    down_->copy(
        slot.gradients.span(run.from.dtype(),
                            run.from.numel(),
                            static_cast<std::size_t>(run.at) * dtype_bytes(run.from.dtype())),
        run.from);
    fetched_bytes_ += static_cast<std::int64_t>(run.from.size_bytes());
  }
  slot.fetched = down_->record();
}

void HostCopies::wait(std::size_t turn) {
  const auto begin = std::chrono::steady_clock::now();
  device::host().wait(slot_of(turn).fetched);
  device::host().wait(slot_of(turn).sent);
  wait_seconds_ += seconds_since(begin);
}

ConstSpan HostCopies::gradient(std::size_t turn,
                               std::int64_t at,
                               std::int64_t numel,
                               Dtype dtype) const {
  return slot_of(turn).gradients.span(
      dtype, numel, static_cast<std::size_t>(at) * dtype_bytes(dtype));
}

Span HostCopies::parameters(std::size_t turn,
                            std::int64_t at,
                            std::int64_t numel,
                            Dtype dtype) const {
  return slot_of(turn).parameters.span(
      dtype, numel, static_cast<std::size_t>(at) * dtype_bytes(dtype));
}

void HostCopies::send(std::size_t turn, const std::vector<Send>& parameters) {
  for (const Send& run : parameters) {
    const Span& to = run.to;
    up_->copy(to, HostCopies::parameters(turn, run.at, to.numel(), to.dtype()));
    sent_bytes_ += static_cast<std::int64_t>(to.size_bytes());
  }
  slots_[turn % kSlots].sent = up_->record();
}

void HostCopies::publish() {
  device::driver(gpu_).stream().wait(up_->record());
}

}  // namespace trireme::detail
