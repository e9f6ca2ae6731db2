#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <c10/core/Storage.h>

#include "parallel/memory/part_context.h"
#include "parallel/memory/unit_source.h"
#include "parallel/memory/unit_storage.h"
#include "parallel/model/operator_watch.h"

namespace trireme::detail {

// Units that exist in parts and are put together while they are used. At most `limit` bytes are
// whole at a time, unless one operator needs more. Which unit comes next is learned from the
// sequence of uses of the last step; it decides what is released and what is fetched ahead.
class LiveUnits : public std::enable_shared_from_this<LiveUnits> {
 public:
  LiveUnits(std::size_t limit,
            bool prefetch,
            std::unique_ptr<UnitSource> source,
            Device device = {});
  ~LiveUnits();

  // The next unit. Its storage has no memory until it is used.
  void add(std::size_t bytes, UnitNames names);
  const UnitStorage& storage(std::size_t unit) const { return units_[unit].storage; }

  void pin(std::size_t unit);
  void unpin(std::size_t unit);

  // What is whole is out of date: an update has begun. No unit may be in use.
  void drop_all();
  // A step is over: what was seen in it is the expectation for the next.
  void end_of_step();
  // The parts are gone; a later use is an error.
  void close();

 private:
  struct Unit {
    std::size_t bytes = 0;
    UnitStorage storage;
    std::shared_ptr<Watched> watched;
    const std::byte* memory = nullptr;  // while it is whole
    int pins = 0;
    bool live = false;      // whole, and its tensors point at it
    bool fetching = false;  // by the thread
    bool fetched = false;   // by the thread: whole, but its tensors do not know
    std::uint64_t last_use = 0;
  };
  class Handle;

  // All below are called under the mutex.
  void note_use(std::size_t unit);
  // Releases units until `bytes` more fit; `keep` and pinned ones stay. False where that is not
  // enough. Those that are needed sooner than after `horizon` uses stay, too.
  bool make_room(std::size_t bytes, std::size_t keep, std::size_t horizon);
  void release(Unit& unit);
  void make_live(Unit& unit);
  // Uses from now until the next one of `unit`; large when none is expected.
  std::size_t distance(std::size_t unit) const;
  void run_thread();

  const std::size_t limit_;
  const Device device_;
  const std::unique_ptr<UnitSource> source_;

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_:
  std::vector<Unit> units_;
  std::vector<std::size_t> expected_;  // the uses of the last step, repetitions left out
  std::vector<std::size_t> seen_;      // those of this step
  std::size_t position_ = 0;           // in expected_, behind the last use
  std::size_t live_bytes_ = 0;
  std::uint64_t clock_ = 0;
  bool closed_ = false;
  bool told_ = false;
  int wanted_ = -1;  // the unit the thread is to fetch
  std::thread thread_;
};

// As many of a model's units, and fetched ahead, as the options say. `make_source` gets the units'
// sizes and the limit.
std::shared_ptr<LiveUnits> make_live_units(
    const PartContext& context,
    const std::function<std::unique_ptr<UnitSource>(std::vector<std::size_t> bytes,
                                                    std::size_t limit)>& make_source);

}  // namespace trireme::detail
