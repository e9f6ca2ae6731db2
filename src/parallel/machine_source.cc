#include <algorithm>
#include <atomic>
#include <cerrno>
#include <new>

#include <pthread.h>

#include "parallel/unit_source.h"
#include "trireme/core/error.h"
#include "trireme/core/log.h"

// Note [shared units]
// The machine's ranks share a few places for whole units, and a table that says what is where. A
// rank that needs a unit looks there under a lock: it finds it, or somebody who is fetching it, or
// takes a place that nobody uses and fetches it itself. A place keeps its unit after the last
// release, for a rank that is a little behind. Units of before an update have another number of the
// update and are not found. When all places are in use, because the ranks are at different ends of
// the model, a rank fetches for itself: nobody ever waits for a place.

namespace trireme::detail {
namespace {

class MachineSource final : public UnitSource {
 public:
  MachineSource(Communicator& machine,
                std::vector<std::size_t> unit_bytes,
                std::size_t limit,
                Milliseconds patience,
                FetchUnit fetch,
                std::shared_ptr<MemoryLedger> ledger)
      : bytes_(std::move(unit_bytes)),
        patience_(patience),
        fetch_(fetch),
        held_(bytes_.size(), kNowhere),
        own_(make_private_source(bytes_, limit, std::move(fetch), ledger)) {
    const std::size_t page = SharedBuffer::page_bytes();
    const std::size_t largest =
        bytes_.empty() ? 0 : *std::max_element(bytes_.begin(), bytes_.end());
    place_bytes_ = (largest + page - 1) / page * page;
    places_ = std::clamp<std::size_t>(largest == 0 ? 0 : limit / largest + 2, 2, kMostPlaces);
    table_bytes_ = (sizeof(Table) + page - 1) / page * page;
    const std::size_t total = table_bytes_ + places_ * place_bytes_;
    const auto ranks = static_cast<std::size_t>(machine.size());
    const std::size_t part = ((total + ranks - 1) / ranks + page - 1) / page * page;
    memory_ = machine.allocate(part);
    if (machine.rank() == 0) {
      charge_ = ledger->charge(MemoryCategory::kGather, part * ranks);
      table_ = new (memory_.whole()) Table;
      table_->prepare();
    }
    machine.barrier().wait();
    table_ = reinterpret_cast<Table*>(memory_.whole());
    seen_ = memory_.whole_read_only() + table_bytes_;
  }

  const std::byte* acquire(std::size_t unit) override {
    const Deadline deadline(patience_);
    std::size_t place = kNowhere;
    {
      Lock lock(*table_);
      for (;;) {
        place = find(unit);
        if (place == kNowhere || table_->places[place].state == State::kWhole) {
          break;
        }
        if (!lock.wait(deadline)) {
          throw CommError(
              CommError::Reason::kTimeout,
              -1,
              "a rank of this machine began to fetch parameters from other machines and "
              "has not finished: it is stopped or lost");
        }
      }
      if (place != kNowhere) {
        ++table_->places[place].users;
        held_[unit] = place;
        return at(place);
      }
      place = find_free();
      if (place != kNowhere) {
        Place& mine = table_->places[place];
        mine.unit = unit;
        mine.update = update_;
        mine.state = State::kComing;
        mine.users = 1;
      }
    }
    if (place == kNowhere) {
      tell_of_crowding();
      held_[unit] = kNowhere;
      return own_->acquire(unit);
    }
    try {
      fetch_(unit, memory_.whole() + table_bytes_ + place * place_bytes_);
    } catch (...) {
      Lock lock(*table_);
      table_->places[place].state = State::kEmpty;
      table_->places[place].users = 0;
      lock.tell();
      throw;
    }
    Lock lock(*table_);
    table_->places[place].state = State::kWhole;
    held_[unit] = place;
    lock.tell();
    return at(place);
  }

  void release(std::size_t unit) override {
    if (held_[unit] == kNowhere) {
      own_->release(unit);
      return;
    }
    Lock lock(*table_);
    Place& place = table_->places[held_[unit]];
    --place.users;
    place.last_use = ++table_->clock;
    held_[unit] = kNowhere;
  }

  void outdate() override { ++update_; }

 private:
  static constexpr std::size_t kMostPlaces = 64;
  static constexpr std::size_t kNowhere = ~std::size_t{0};
  enum class State : std::uint32_t { kEmpty = 0, kComing = 1, kWhole = 2 };
  struct Place {
    std::uint64_t unit = 0;
    std::uint64_t update = 0;
    std::uint64_t last_use = 0;
    State state = State::kEmpty;
    std::int32_t users = 0;
  };
  // In memory that all ranks of the machine map.
  struct Table {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    std::uint64_t clock = 0;
    Place places[kMostPlaces];

    void prepare() {
      pthread_mutexattr_t mutex_kind;
      pthread_mutexattr_init(&mutex_kind);
      pthread_mutexattr_setpshared(&mutex_kind, PTHREAD_PROCESS_SHARED);
      // A rank that dies inside leaves it usable; that the rank is gone is found elsewhere.
      pthread_mutexattr_setrobust(&mutex_kind, PTHREAD_MUTEX_ROBUST);
      pthread_mutex_init(&mutex, &mutex_kind);
      pthread_mutexattr_destroy(&mutex_kind);
      pthread_condattr_t condition_kind;
      pthread_condattr_init(&condition_kind);
      pthread_condattr_setpshared(&condition_kind, PTHREAD_PROCESS_SHARED);
      pthread_condattr_setclock(&condition_kind, CLOCK_MONOTONIC);
      pthread_cond_init(&changed, &condition_kind);
      pthread_condattr_destroy(&condition_kind);
    }
  };
  class Lock {
   public:
    explicit Lock(Table& table) : table_(table) { settle(pthread_mutex_lock(&table.mutex)); }
    ~Lock() { pthread_mutex_unlock(&table_.mutex); }
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;
    void tell() { pthread_cond_broadcast(&table_.changed); }
    // False when the deadline has passed.
    bool wait(const Deadline& deadline) {
      timespec until{};
      clock_gettime(CLOCK_MONOTONIC, &until);
      until.tv_nsec += 20'000'000;
      if (until.tv_nsec >= 1'000'000'000) {
        until.tv_nsec -= 1'000'000'000;
        ++until.tv_sec;
      }
      settle(pthread_cond_timedwait(&table_.changed, &table_.mutex, &until));
      return !deadline.passed();
    }

   private:
    void settle(int result) {
      if (result == EOWNERDEAD) {
        pthread_mutex_consistent(&table_.mutex);
      }
    }
    Table& table_;
  };

  const std::byte* at(std::size_t place) const { return seen_ + place * place_bytes_; }

  std::size_t find(std::size_t unit) const {
    for (std::size_t i = 0; i < places_; ++i) {
      const Place& place = table_->places[i];
      if (place.state != State::kEmpty && place.unit == unit && place.update == update_) {
        return i;
      }
    }
    return kNowhere;
  }
  // One that nobody uses: empty or out of date rather than what somebody may still come for.
  std::size_t find_free() const {
    std::size_t best = kNowhere;
    const auto worth = [&](const Place& place) {
      return place.state == State::kEmpty || place.update != update_ ? 0 : place.last_use + 1;
    };
    for (std::size_t i = 0; i < places_; ++i) {
      const Place& place = table_->places[i];
      if (place.users == 0 && place.state != State::kComing &&
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
          "other "
          "machines more than once (EngineOptions::gather_bytes)");
    }
  }

  const std::vector<std::size_t> bytes_;  // of each unit
  const Milliseconds patience_;
  const FetchUnit fetch_;
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

std::unique_ptr<UnitSource> make_machine_source(Communicator& machine,
                                                std::vector<std::size_t> unit_bytes,
                                                std::size_t limit,
                                                Milliseconds patience,
                                                FetchUnit fetch,
                                                std::shared_ptr<MemoryLedger> ledger) {
  return std::make_unique<MachineSource>(
      machine, std::move(unit_bytes), limit, patience, std::move(fetch), std::move(ledger));
}

}  // namespace trireme::detail
