#include <algorithm>
#include <atomic>
#include <new>

#include "parallel/memory/machine_lock.h"
#include "parallel/memory/neighbour_watch.h"
#include "parallel/memory/shared_word.h"
#include "parallel/memory/unit_source.h"
#include "trireme/core/log.h"
#include "trireme/core/pulse.h"

// Note [shared units]
// The machine's ranks share a few places for whole units, and a table that says what is where. A
// rank that needs a unit looks there under a lock: it finds it, or somebody who is fetching it, or
// takes a place that nobody uses and fetches it itself. A place keeps its unit after the last
// release, for a rank that is a little behind. Units of before an update have another number of the
// update and are not found. When all places are in use, because the ranks are at different ends of
// the model, a rank fetches for itself: nobody ever waits for a place.
//
// The lock is for finding and taking a place. From then on it is its fetcher's, who alone changes
// its state until the unit is whole; the others sleep on that word. A rank that dies anywhere in
// here is found by those who wait for it (Note [watching neighbours]) or by the next collective.

namespace trireme::detail {
namespace {

class MachineSource final : public UnitSource {
 public:
  MachineSource(Communicator& world, const FetchedUnits& units)
      : fetch_(units.fetch),
        world_(world),
        machine_(world.machine()),
        neighbours_(meet_neighbours(world)),
        held_(units.bytes.size(), kNowhere),
        own_(make_private_source(units)) {
    const std::size_t page = SharedBuffer::page_bytes();
    const std::size_t largest = units.bytes.empty() ? 0 : *std::ranges::max_element(units.bytes);
    place_bytes_ = (largest + page - 1) / page * page;
    places_ = std::clamp<std::size_t>(largest == 0 ? 0 : units.limit / largest + 2, 2, kMostPlaces);
    table_bytes_ = (sizeof(Table) + page - 1) / page * page;
    const std::size_t total = table_bytes_ + places_ * place_bytes_;
    const auto ranks = static_cast<std::size_t>(machine_.size());
    const std::size_t part = ((total + ranks - 1) / ranks + page - 1) / page * page;
    memory_ = machine_.allocate(part);
    if (machine_.rank() == 0) {
      charge_ = units.ledger->charge(MemoryCategory::kGather, part * ranks);
      table_ = new (memory_.whole()) Table;
    }
    machine_.barrier().wait();
    table_ = reinterpret_cast<Table*>(memory_.whole());
    seen_ = memory_.whole_read_only() + table_bytes_;
  }

  const std::byte* acquire(std::size_t unit) override {
    NeighbourWatch watch(world_, neighbours_);
    for (;;) {
      Found found;
      {
        const MachineLock::Hold hold(table_->lock, machine_.rank(), watch);
        found = find_or_take(unit);
      }
      switch (found.how) {
        case How::kWhole:
          held_[unit] = found.place;
          return at(found.place);
        case How::kTaken:
          fetch(unit, found.place);
          held_[unit] = found.place;
          return at(found.place);
        case How::kNoPlace:
          tell_of_crowding();
          held_[unit] = kNowhere;
          return own_->acquire(unit);
        case How::kComing:
          break;
      }
      // What is there then, the unit or nothing, is looked up again.
      Place& place = table_->places[found.place];
      const PulseWait waits;
      while (place.state.load(std::memory_order_acquire) == kComing) {
        sleep_on(place.state, kComing, NeighbourWatch::kInterval);
        if (place.state.load(std::memory_order_acquire) == kComing) {
          watch.look(place.fetcher.load(), "fetches parameters from other machines");
        }
      }
    }
  }

  void release(std::size_t unit) override {
    if (held_[unit] == kNowhere) {
      own_->release(unit);
      return;
    }
    Place& place = table_->places[held_[unit]];
    held_[unit] = kNowhere;
    place.last_use.store(table_->clock.fetch_add(1) + 1);
    place.users.fetch_sub(1, std::memory_order_release);
  }

  void outdate() override { ++update_; }

 private:
  static constexpr std::size_t kMostPlaces = 64;
  static constexpr std::size_t kNowhere = ~std::size_t{0};
  // Of a place.
  static constexpr std::uint32_t kEmpty = 0;
  static constexpr std::uint32_t kComing = 1;
  static constexpr std::uint32_t kWhole = 2;
  struct Place {
    SharedWord state{kEmpty};
    std::atomic<std::int32_t> fetcher{0};  // its number on the machine
    std::atomic<std::int32_t> users{0};
    std::atomic<std::uint64_t> last_use{0};
    // Guarded by the lock:
    std::uint64_t unit = 0;
    std::uint64_t update = 0;
  };
  // In memory that all ranks of the machine map.
  struct Table {
    MachineLock lock;
    std::atomic<std::uint64_t> clock{0};
    Place places[kMostPlaces];
  };
  enum class How {
    kWhole,    // this rank is one of its users now
    kComing,   // somebody fetches it
    kTaken,    // by this rank, which is to fetch it
    kNoPlace,  // all are in use
  };
  struct Found {
    How how = How::kNoPlace;
    std::size_t place = kNowhere;
  };

  // Under the lock.
  Found find_or_take(std::size_t unit) {
    std::size_t index = find(unit);
    if (index != kNowhere) {
      Place& place = table_->places[index];
      if (place.state.load(std::memory_order_acquire) != kWhole) {
        return {How::kComing, index};  // or has failed to come since it was found
      }
      place.users.fetch_add(1);
      return {How::kWhole, index};
    }
    index = find_free();
    if (index == kNowhere) {
      return {};
    }
    Place& place = table_->places[index];
    place.unit = unit;
    place.update = update_;
    place.users.store(1);
    place.fetcher.store(machine_.rank());
    place.state.store(kComing);
    return {How::kTaken, index};
  }

  void fetch(std::size_t unit, std::size_t index) {
    Place& place = table_->places[index];
    try {
      fetch_(unit, memory_.whole() + table_bytes_ + index * place_bytes_);
    } catch (...) {
      place.users.store(0);
      place.state.store(kEmpty, std::memory_order_release);
      wake_all(place.state);
      throw;
    }
    place.state.store(kWhole, std::memory_order_release);
    wake_all(place.state);
  }

  const std::byte* at(std::size_t place) const { return seen_ + place * place_bytes_; }

  std::size_t find(std::size_t unit) const {
    for (std::size_t i = 0; i < places_; ++i) {
      const Place& place = table_->places[i];
      if (place.state.load(std::memory_order_acquire) != kEmpty && place.unit == unit &&
          place.update == update_) {
        return i;
      }
    }
    return kNowhere;
  }
  // One that nobody uses: empty or out of date rather than what somebody may still come for.
  std::size_t find_free() const {
    std::size_t best = kNowhere;
    const auto worth = [&](const Place& place) {
      return place.state.load() == kEmpty || place.update != update_ ? 0
                                                                     : place.last_use.load() + 1;
    };
    for (std::size_t i = 0; i < places_; ++i) {
      const Place& place = table_->places[i];
      if (place.users.load(std::memory_order_acquire) == 0 && place.state.load() != kComing &&
          (best == kNowhere || worth(place) < worth(table_->places[best]))) {
        best = i;
      }
    }
    return best;
  }

  void tell_of_crowding() {
    if (!told_.exchange(true)) {
      log(LogLevel::kInfo,
          "the ranks of this machine use different parameters at a time: some are fetched from "
          "other machines more than once (EngineOptions::gather_bytes)");
    }
  }

  const FetchUnit fetch_;
  Communicator& world_;
  Communicator& machine_;
  const std::vector<Neighbour> neighbours_;
  std::size_t place_bytes_ = 0;
  std::size_t places_ = 0;
  std::size_t table_bytes_ = 0;
  SharedBuffer memory_;
  MemoryLedger::Charge charge_;
  Table* table_ = nullptr;
  const std::byte* seen_ = nullptr;  // the places, through a mapping that cannot be written
  std::uint64_t update_ = 0;         // how many have been; the same on all ranks
  std::vector<std::size_t> held_;    // by unit: its place, where this rank has it in one
  std::unique_ptr<UnitSource> own_;
  std::atomic<bool> told_{false};
};

}  // namespace

std::unique_ptr<UnitSource> make_machine_source(Communicator& world, const FetchedUnits& units) {
  return std::make_unique<MachineSource>(world, units);
}

}  // namespace trireme::detail
