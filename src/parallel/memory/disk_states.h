#pragma once

#include <atomic>
#include <cstdint>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "device/buffer.h"
#include "parallel/memory/state_file.h"
#include "parallel/memory/state_window.h"
#include "trireme/core/memory_ledger.h"
#include "trireme/shard/range.h"
#include "trireme/shard/state_view.h"

namespace trireme::detail {

// What an update needs of this rank's range of every unit, in a file: masters, states, averages.
//
// Note [windows]
// A unit's arrays are cut into windows, and what an update needs of one window lies in one run of
// the file, array after array. An update takes windows in the order of the file: while one is
// updated, the next is read and the one before is written, each by a thread of its own, in three
// pieces of memory. So an update takes as long as the slowest of reading, writing and computing,
// not their sum, and disks see nothing but runs of megabytes, with which one request at a time
// keeps them busy.
//
// Of every array of a window, the checksum is kept in memory and compared when it is read again: a
// disk that returns something else than what was written to it is found, and named.
class DiskStates final : public StateStore {
 public:
  // Of a unit.
  struct Arrays {
    std::int64_t numel = 0;  // of each: what this rank updates
    std::size_t element_bytes = 0;
    std::size_t count = 0;
  };
  // Throws ConfigError (state_file.h).
  DiskStates(const std::string& folder, int rank, std::vector<Arrays> units, MemoryLedger& ledger);
  DiskStates(const DiskStates&) = delete;
  DiskStates& operator=(const DiskStates&) = delete;
  ~DiskStates() override;

  // --- an update

  // The windows (state_window.h) that an update takes, by their numbers over all units, ascending:
  // begins to read the first.
  void begin(std::vector<std::size_t> order);
  // The next of them, in memory. Throws DataError, also of those before.
  void next();
  // Its arrays, one of which begins so many bytes after the other.
  std::byte* array(std::size_t number) const;
  // It has changed: is written while the others go on.
  void put_back();
  // All are written.
  void finish();

  // --- between updates: as one row of bytes, unit after unit, array after array (StateStore)

  std::uint64_t place(std::size_t unit, std::size_t array, std::int64_t element) const;
  void read(std::uint64_t from, std::byte* to, std::size_t bytes) override;
  void write(std::uint64_t to, const std::byte* from, std::size_t bytes) override;
  // What write() has kept to itself is in the file.
  void flush();

  // --- what it has done

  std::uint64_t size_bytes() const { return bytes_; }
  std::int64_t read_bytes() const { return read_bytes_; }
  std::int64_t written_bytes() const { return written_bytes_; }
  double wait_seconds() const { return wait_seconds_; }  // of updates
  const StateFile& file() const { return *file_; }

 private:
  struct Slot {
    device::Buffer memory;
    std::future<void> reading;
    std::future<void> writing;
  };
  struct InFile {
    std::uint64_t offset = 0;
    std::size_t array_bytes = 0;
    std::size_t stride = 0;  // from one array to the next
    std::size_t first = 0;   // of its checksums
    std::size_t count = 0;   // of its arrays
  };
  // An array of a window.
  struct Column {
    std::size_t window = 0;
    std::size_t array = 0;
    bool operator==(const Column&) const = default;
  };
  // Where bytes are that a call is about, and how many of them are in one column.
  struct Part {
    Column column;
    std::size_t begin = 0;
    std::size_t bytes = 0;
  };

  void start_reading(std::size_t turn);
  void load(std::size_t window, std::byte* to);
  void store(std::size_t window, const std::byte* from);
  void check(const InFile& in, std::size_t array, const std::byte* bytes) const;
  Part part_at(std::uint64_t at, std::size_t bytes) const;
  void hold(const Column& column, bool with_values);
  Slot& slot_of(std::size_t turn) { return slots_[turn % kSlots]; }

  static constexpr std::size_t kSlots = 3;

  std::vector<Arrays> units_;
  std::vector<std::uint64_t> places_;                    // by unit: where its row of bytes begins
  std::vector<std::size_t> first_window_;                // by unit
  std::vector<std::int64_t> window_numel_;               // by unit, of all but the last
  std::vector<InFile> in_file_;                          // by window
  std::vector<std::optional<std::uint64_t>> checksums_;  // nothing: never written, zeros
  std::uint64_t bytes_ = 0;                              // of the file
  std::optional<StateFile> file_;
  MemoryLedger::Charge disk_charge_;
  MemoryLedger::Charge memory_charge_;

  std::vector<std::size_t> order_;
  std::size_t turn_ = 0;  // windows that were handed out
  std::vector<Slot> slots_{kSlots};

  device::Buffer held_;  // a column, between updates
  std::optional<Column> held_column_;
  bool held_changed_ = false;

  std::atomic<std::int64_t> read_bytes_{0};
  std::atomic<std::int64_t> written_bytes_{0};
  double wait_seconds_ = 0;
};

}  // namespace trireme::detail
