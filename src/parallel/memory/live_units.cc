#include "parallel/memory/live_units.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "trireme/core/error.h"
#include "trireme/core/log.h"
#include "trireme/core/machine.h"

namespace trireme::detail {

// What the tensors' storage knows of its unit.
class LiveUnits::Handle final : public Watched {
 public:
  Handle(std::weak_ptr<LiveUnits> units, std::size_t unit, UnitNames names)
      : units_(std::move(units)), unit_(unit), names_(std::move(names)) {}
  void pin() override { units().pin(unit_); }
  void unpin() override { units().unpin(unit_); }
  Holder holder() const override {
    return units_.expired() ? Holder::kEngineGone : Holder::kEngine;
  }
  std::string name_at(std::int64_t offset) const override { return names_.at(offset); }

 private:
  LiveUnits& units() const {
    const auto units = units_.lock();
    TRIREME_CHECK(units,
                  "parameter {} was divided among the ranks by an engine that is gone: call "
                  "engine.unwrap() before the engine ends to keep the model",
                  {names_.at(0)});
    return *units;  // pinned units belong to an engine that is alive
  }

  std::weak_ptr<LiveUnits> units_;
  std::size_t unit_;
  UnitNames names_;
};

LiveUnits::LiveUnits(std::size_t limit,
                     bool prefetch,
                     std::unique_ptr<UnitSource> source,
                     Device device)
    : limit_(limit), device_(device), source_(std::move(source)) {
  if (prefetch) {
    thread_ = std::thread([this] { run_thread(); });
  }
}

LiveUnits::~LiveUnits() {
  close();
}

void LiveUnits::close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) {
    thread_.join();
  }
  const std::lock_guard lock(mutex_);
  for (Unit& unit : units_) {
    if (unit.live || unit.fetched) {
      release(unit);
    }
  }
}

void LiveUnits::add(std::size_t bytes, UnitNames names) {
  const std::lock_guard lock(mutex_);
  Unit unit;
  unit.bytes = bytes;
  unit.watched = std::make_shared<Handle>(weak_from_this(), units_.size(), std::move(names));
  unit.storage = UnitStorage(nullptr, 0, unit.watched, device_);
  if (bytes > 0) {
    refuse_access(*unit.storage.storage().unsafeGetStorageImpl(), *unit.watched);
  }
  units_.push_back(std::move(unit));
}

void LiveUnits::pin(std::size_t index) {
  std::unique_lock lock(mutex_);
  if (units_[index].bytes == 0) {
    return;  // parameters without elements: there is nothing to put together
  }
  TRIREME_CHECK(!closed_,
                "a parameter was used after its engine ended: call engine.unwrap() first");
  note_use(index);
  Unit& unit = units_[index];
  changed_.wait(lock, [&] { return !unit.fetching; });
  ++unit.pins;  // before making room, which may not take it
  if (!unit.live) {
    if (!unit.fetched) {
      if (!make_room(unit.bytes, index, 0) && !told_) {
        told_ = true;
        log(LogLevel::kWarning,
            concat("one operator needs more parameters at a time than EngineOptions::gather_bytes "
                   "({}) allows: {} bytes; it gets them",
                   {limit_, live_bytes_ + unit.bytes}));
      }
      live_bytes_ += unit.bytes;
      try {
        unit.memory = source_->acquire(index);
      } catch (...) {
        live_bytes_ -= unit.bytes;
        --unit.pins;
        throw;
      }
    }
    make_live(unit);
  }
  unit.last_use = ++clock_;
  if (thread_.joinable() && position_ < expected_.size() && wanted_ < 0) {
    const std::size_t next = expected_[position_];
    // Room for it comes from what is needed later than it.
    if (!units_[next].live && !units_[next].fetching && !units_[next].fetched &&
        make_room(units_[next].bytes, index, distance(next))) {
      wanted_ = static_cast<int>(next);
      changed_.notify_all();
    }
  }
}

void LiveUnits::unpin(std::size_t index) {
  const std::lock_guard lock(mutex_);
  if (units_[index].bytes > 0) {
    --units_[index].pins;
  }
}

void LiveUnits::note_use(std::size_t unit) {
  if (!seen_.empty() && seen_.back() == unit) {
    return;
  }
  if (seen_.size() > 64 * units_.size()) {
    seen_.clear();  // a long evaluation, not a step
  }
  seen_.push_back(unit);
  // Where the step leaves the expectation, it is looked for further on.
  const auto found =
      std::find(expected_.begin() + static_cast<std::ptrdiff_t>(position_), expected_.end(), unit);
  if (found != expected_.end()) {
    position_ = static_cast<std::size_t>(found - expected_.begin()) + 1;
  }
}

std::size_t LiveUnits::distance(std::size_t unit) const {
  const auto from = expected_.begin() + static_cast<std::ptrdiff_t>(position_);
  const auto found = std::find(from, expected_.end(), unit);
  return found == expected_.end() ? std::numeric_limits<std::size_t>::max()
                                  : static_cast<std::size_t>(found - from);
}

bool LiveUnits::make_room(std::size_t bytes, std::size_t keep, std::size_t horizon) {
  while (live_bytes_ + bytes > limit_) {
    Unit* victim = nullptr;
    std::size_t farthest = 0;
    for (std::size_t i = 0; i < units_.size(); ++i) {
      Unit& unit = units_[i];
      const std::size_t next = distance(i);
      if (!unit.live || unit.pins > 0 || i == keep || next < horizon) {
        continue;
      }
      // What is needed last goes first; before anything is learned, what was used longest ago.
      if (victim == nullptr || next > farthest ||
          (next == farthest && unit.last_use < victim->last_use)) {
        victim = &unit;
        farthest = next;
      }
    }
    if (victim == nullptr) {
      return false;
    }
    release(*victim);
  }
  return true;
}

void LiveUnits::release(Unit& unit) {
  show_memory(*unit.storage.storage().unsafeGetStorageImpl(), nullptr, 0, unit.watched);
  unit.live = false;
  unit.fetched = false;
  live_bytes_ -= unit.bytes;
  unit.memory = nullptr;
  source_->release(static_cast<std::size_t>(&unit - units_.data()));
}

void LiveUnits::make_live(Unit& unit) {
  show_memory(*unit.storage.storage().unsafeGetStorageImpl(),
              const_cast<std::byte*>(unit.memory),
              unit.bytes,
              unit.watched);
  unit.live = true;
  unit.fetched = false;
}

void LiveUnits::drop_all() {
  std::unique_lock lock(mutex_);
  wanted_ = -1;
  changed_.wait(lock, [&] {
    return std::ranges::none_of(units_, [](const Unit& unit) { return unit.fetching; });
  });
  for (Unit& unit : units_) {
    if (unit.live || unit.fetched) {
      TRIREME_ASSERT(unit.pins == 0, "a unit is in use while its parameters change");
      release(unit);
    }
  }
  source_->outdate();
}

void LiveUnits::end_of_step() {
  const std::lock_guard lock(mutex_);
  if (!seen_.empty()) {
    expected_ = std::move(seen_);
  }
  seen_.clear();
  position_ = 0;
}

void LiveUnits::run_thread() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return closed_ || wanted_ >= 0; });
    if (closed_) {
      return;
    }
    const auto index = static_cast<std::size_t>(wanted_);
    wanted_ = -1;
    Unit& unit = units_[index];
    // Ahead only into room that is free: what is in use now must not go for it.
    if (unit.live || unit.fetching || unit.fetched || live_bytes_ + unit.bytes > limit_) {
      continue;
    }
    unit.fetching = true;
    live_bytes_ += unit.bytes;
    lock.unlock();
    const std::byte* memory = nullptr;
    try {
      memory = source_->acquire(index);
    } catch (const Error& error) {
      log(LogLevel::kDebug, error.what());  // whoever needs it will be told
    }
    lock.lock();
    if (memory != nullptr) {
      unit.memory = memory;
      unit.fetched = true;  // the thread that uses it makes it live
    } else {
      live_bytes_ -= unit.bytes;
    }
    unit.fetching = false;
    changed_.notify_all();
  }
}

std::shared_ptr<LiveUnits> make_live_units(
    const PartContext& context,
    const std::function<std::unique_ptr<UnitSource>(std::vector<std::size_t> bytes,
                                                    std::size_t limit)>& make_source) {
  std::vector<std::size_t> bytes;
  for (const Unit& unit : context.plan.units) {
    bytes.push_back(unit.bytes());
  }
  std::size_t limit = context.options.gather_bytes;
  if (limit == 0) {
    std::vector<std::size_t> sizes = bytes;
    sizes.resize(sizes.size() + 2, 0);
    std::partial_sort(sizes.begin(), sizes.begin() + 2, sizes.end(), std::greater<>());
    limit = sizes[0] + sizes[1];
  }
  bool prefetch = context.options.prefetch == Prefetch::kOn;
  if (context.options.prefetch == Prefetch::kAutomatic) {
    // From another machine a unit takes time in which nothing is computed here.
    prefetch = !context.owners.one_machine() || allowed_cpus().size() > 1;
    if (!prefetch && context.owners.rank() == 0) {
      log(LogLevel::kInfo, "no prefetch of parameters: each rank has only one processor");
    }
  }
  // On a GPU, copies are issued and not waited for: nothing is gained by another thread.
  prefetch = prefetch && context.plan.device.is_host();
  auto live =
      std::make_shared<LiveUnits>(limit, prefetch, make_source(bytes, limit), context.plan.device);
  for (const Unit& unit : context.plan.units) {
    live->add(unit.bytes(), UnitNames(unit, context.plan.parameters));
  }
  return live;
}

}  // namespace trireme::detail
