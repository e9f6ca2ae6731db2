#include "parallel/memory/disk_states.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <system_error>
#include <utility>

#include <xxhash.h>

#include "trireme/core/error.h"
#include "trireme/core/seconds_since.h"

namespace trireme::detail {
namespace {

std::size_t rounded_up(std::size_t bytes) {
  constexpr std::size_t kTo = StateFile::kAlignment;
  return (bytes + kTo - 1) / kTo * kTo;
}

// On a thread of its own; where there is none to be had, when somebody waits for it.
template <class Function>
std::future<void> in_background(Function function) {
  auto shared = std::make_shared<Function>(std::move(function));
  try {
    return std::async(std::launch::async, [shared] { (*shared)(); });
  } catch (const std::system_error&) {
    return std::async(std::launch::deferred, [shared] { (*shared)(); });
  }
}

void wait_for(std::future<void>& work) {
  if (work.valid()) {
    work.get();
  }
}

}  // namespace

DiskStates::DiskStates(const std::string& folder,
                       int rank,
                       std::vector<Arrays> units,
                       MemoryLedger& ledger)
    : units_(std::move(units)) {
  std::uint64_t place = 0;
  std::size_t largest = 0;
  std::size_t largest_array = 0;
  std::size_t checksums = 0;
  for (std::size_t u = 0; u < units_.size(); ++u) {
    const Arrays& arrays = units_[u];
    places_.push_back(place);
    place += static_cast<std::uint64_t>(arrays.numel) * arrays.element_bytes * arrays.count;
    first_window_.push_back(in_file_.size());
    window_numel_.push_back(window_numel(arrays.numel, kDiskWindow));
    for (const Range& range : windows_of({0, arrays.numel}, kDiskWindow)) {
      const std::size_t bytes = static_cast<std::size_t>(range.size()) * arrays.element_bytes;
      const std::size_t stride = rounded_up(bytes);
      in_file_.push_back({bytes_, bytes, stride, checksums, arrays.count});
      checksums += arrays.count;
      bytes_ += stride * arrays.count;
      largest = std::max(largest, stride * arrays.count);
      largest_array = std::max(largest_array, stride);
    }
  }
  checksums_.resize(checksums);
  file_.emplace(folder, rank, std::max<std::uint64_t>(bytes_, StateFile::kAlignment));
  for (Slot& slot : slots_) {
    slot.memory = device::Buffer(largest);
  }
  held_ = device::Buffer(largest_array);
  disk_charge_ = ledger.charge(MemoryCategory::kDisk, bytes_);
  memory_charge_ = ledger.charge(MemoryCategory::kBuckets, kSlots * largest + largest_array);
}

DiskStates::~DiskStates() {
  for (Slot& slot : slots_) {
    for (std::future<void>* work : {&slot.reading, &slot.writing}) {
      if (work->valid()) {
        work->wait();
      }
    }
  }
}

void DiskStates::begin(std::vector<std::size_t> order) {
  flush();
  held_column_.reset();
  order_ = std::move(order);
  turn_ = 0;
  if (!order_.empty()) {
    start_reading(0);
  }
}

void DiskStates::start_reading(std::size_t turn) {
  Slot& slot = slot_of(turn);
  // What was in its memory has to be in the file first.
  slot.reading = in_background(
      [this, &slot, window = order_[turn], written = std::move(slot.writing)]() mutable {
        wait_for(written);
        load(window, slot.memory.data());
      });
}

void DiskStates::next() {
  const std::size_t turn = turn_++;
  if (turn + 1 < order_.size()) {
    start_reading(turn + 1);
  }
  const auto begin = std::chrono::steady_clock::now();
  wait_for(slot_of(turn).reading);
  wait_seconds_ += seconds_since(begin);
}

std::byte* DiskStates::array(std::size_t number) const {
  const std::size_t turn = turn_ - 1;
  return slots_[turn % kSlots].memory.data() + number * in_file_[order_[turn]].stride;
}

void DiskStates::put_back() {
  const std::size_t turn = turn_ - 1;
  Slot& slot = slot_of(turn);
  slot.writing =
      in_background([this, &slot, window = order_[turn]] { store(window, slot.memory.data()); });
}

void DiskStates::finish() {
  const auto begin = std::chrono::steady_clock::now();
  for (Slot& slot : slots_) {
    wait_for(slot.writing);
  }
  wait_seconds_ += seconds_since(begin);
}

void DiskStates::load(std::size_t window, std::byte* to) {
  const InFile& in = in_file_[window];
  const std::size_t bytes = in.stride * in.count;
  if (bytes == 0) {
    return;  // no memory either
  }
  const auto first = checksums_.begin() + static_cast<std::ptrdiff_t>(in.first);
  if (std::none_of(first, first + static_cast<std::ptrdiff_t>(in.count), [](const auto& checksum) {
        return checksum.has_value();
      })) {
    std::memset(to, 0, bytes);
    return;
  }
  file_->read(in.offset, to, bytes);
  read_bytes_ += static_cast<std::int64_t>(bytes);
  for (std::size_t array = 0; array < in.count; ++array) {
    check(in, array, to + array * in.stride);
  }
}

void DiskStates::store(std::size_t window, const std::byte* from) {
  const InFile& in = in_file_[window];
  for (std::size_t array = 0; array < in.count; ++array) {
    checksums_[in.first + array] = XXH3_64bits(from + array * in.stride, in.array_bytes);
  }
  const std::size_t bytes = in.stride * in.count;
  file_->write(in.offset, from, bytes);
  written_bytes_ += static_cast<std::int64_t>(bytes);
}

void DiskStates::check(const InFile& in, std::size_t array, const std::byte* bytes) const {
  const auto& checksum = checksums_[in.first + array];
  if (checksum && *checksum != XXH3_64bits(bytes, in.array_bytes)) {
    const std::uint64_t at = in.offset + array * in.stride;
    throw DataError(file_->path(),
                    static_cast<std::int64_t>(at),
                    concat("\"{}\" (which has no name any more), bytes {} to {}: the optimizer "
                           "states are not what was written there: the disk has lost or damaged "
                           "them; look at it (dmesg), and go on from the last checkpoint",
                           {file_->path(), at, at + in.array_bytes}));
  }
}

// --- between updates

std::uint64_t DiskStates::place(std::size_t unit, std::size_t array, std::int64_t element) const {
  const Arrays& arrays = units_[unit];
  return places_[unit] +
         (static_cast<std::uint64_t>(arrays.numel) * array + static_cast<std::uint64_t>(element)) *
             arrays.element_bytes;
}

DiskStates::Part DiskStates::part_at(std::uint64_t at, std::size_t bytes) const {
  const auto unit = static_cast<std::size_t>(std::upper_bound(places_.begin(), places_.end(), at) -
                                             places_.begin() - 1);
  const Arrays& arrays = units_[unit];
  const std::uint64_t array_bytes = static_cast<std::uint64_t>(arrays.numel) * arrays.element_bytes;
  const std::uint64_t within = (at - places_[unit]) % array_bytes;
  const std::uint64_t window_bytes =
      static_cast<std::uint64_t>(window_numel_[unit]) * arrays.element_bytes;
  const std::size_t window = first_window_[unit] + within / window_bytes;
  const std::size_t begin = within % window_bytes;
  return {{window, static_cast<std::size_t>((at - places_[unit]) / array_bytes)},
          begin,
          std::min(bytes, in_file_[window].array_bytes - begin)};
}

void DiskStates::hold(const Column& column, bool with_values) {
  if (held_column_ == column) {
    return;
  }
  flush();
  held_column_.reset();
  const InFile& in = in_file_[column.window];
  if (with_values && checksums_[in.first + column.array]) {
    file_->read(in.offset + column.array * in.stride, held_.data(), in.stride);
    read_bytes_ += static_cast<std::int64_t>(in.stride);
    check(in, column.array, held_.data());
  } else {
    std::memset(held_.data(), 0, in.stride);
  }
  held_column_ = column;
}

void DiskStates::read(std::uint64_t from, std::byte* to, std::size_t bytes) {
  while (bytes > 0) {
    const Part part = part_at(from, bytes);
    hold(part.column, /*with_values=*/true);
    std::memcpy(to, held_.data() + part.begin, part.bytes);
    from += part.bytes;
    to += part.bytes;
    bytes -= part.bytes;
  }
}

void DiskStates::write(std::uint64_t to, const std::byte* from, std::size_t bytes) {
  while (bytes > 0) {
    const Part part = part_at(to, bytes);
    hold(part.column, /*with_values=*/part.bytes < in_file_[part.column.window].array_bytes);
    std::memcpy(held_.data() + part.begin, from, part.bytes);
    held_changed_ = true;
    to += part.bytes;
    from += part.bytes;
    bytes -= part.bytes;
  }
}

void DiskStates::flush() {
  if (!held_changed_) {
    return;
  }
  const InFile& in = in_file_[held_column_->window];
  checksums_[in.first + held_column_->array] = XXH3_64bits(held_.data(), in.array_bytes);
  file_->write(in.offset + held_column_->array * in.stride, held_.data(), in.stride);
  written_bytes_ += static_cast<std::int64_t>(in.stride);
  held_changed_ = false;
}

}  // namespace trireme::detail
