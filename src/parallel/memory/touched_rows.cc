#include "parallel/memory/touched_rows.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "device/stream.h"

namespace trireme::detail {
namespace {

// Of a row, inside of a range.
Range elements_of(std::int64_t row, std::int64_t width, Range range) {
  return intersection({row * width, (row + 1) * width}, range);
}

std::size_t bytes_of(std::int64_t numel, Dtype dtype) {
  return static_cast<std::size_t>(numel) * dtype_bytes(dtype);
}

}  // namespace

std::vector<Range> runs_of_rows(std::span<const std::int64_t> rows,
                                std::int64_t width,
                                Range range) {
  std::vector<Range> runs;
  for (const std::int64_t row : rows) {
    const Range part = elements_of(row, width, range);
    if (part.empty()) {
      continue;
    }
    if (!runs.empty() && runs.back().end == part.begin) {
      runs.back().end = part.end;
    } else {
      runs.push_back(part);
    }
  }
  return runs;
}

OwnedRows::OwnedRows(std::span<const std::int64_t> mine,
                     std::int64_t width,
                     const std::vector<Range>& ranges,
                     Communicator& owners)
    : width_(width), ranges_(ranges) {
  const std::vector<std::int64_t> count = {static_cast<std::int64_t>(mine.size())};
  Counts counts(ranges.size());
  owners.all_gather(count, counts).wait();
  all_.resize(
      static_cast<std::size_t>(std::accumulate(counts.begin(), counts.end(), std::int64_t{0})));
  owners
      .all_gather(ConstSpan(mine.data(), count[0], Dtype::kInt64),
                  Span(all_.data(), static_cast<std::int64_t>(all_.size()), Dtype::kInt64),
                  counts)
      .wait();
  first_.push_back(0);
  for (std::size_t owner = 0; owner < counts.size(); ++owner) {
    first_.push_back(first_.back() + static_cast<std::size_t>(counts[owner]));
    std::int64_t numel = 0;
    for (const Range& run : runs(static_cast<int>(owner))) {
      numel += run.size();
    }
    elements_.push_back(numel);
  }
}

std::span<const std::int64_t> OwnedRows::rows(int owner) const {
  const auto at = static_cast<std::size_t>(owner);
  return {all_.data() + first_[at], first_[at + 1] - first_[at]};
}

std::vector<Range> OwnedRows::runs(int owner) const {
  return runs_of_rows(rows(owner), width_, ranges_[static_cast<std::size_t>(owner)]);
}

TouchedRows::TouchedRows(std::int64_t width, Dtype dtype, MemoryLedger& ledger)
    : width_(width), dtype_(dtype), ledger_(&ledger) {}

Span TouchedRows::values() {
  return {values_.data(), static_cast<std::int64_t>(rows_.size()) * width_, dtype_};
}

// More rows, of zeros.
void TouchedRows::grow(std::size_t rows) {
  values_.resize(bytes_of(static_cast<std::int64_t>(rows) * width_, dtype_));
  charge_ =
      ledger_->charge(MemoryCategory::kGradients, values_.size() + rows * sizeof(std::int64_t));
}

void TouchedRows::add(std::span<const std::int64_t> rows, const ConstSpan& values) {
  if (width_ == 0 || rows.empty()) {
    return;
  }
  std::vector<std::int64_t> places;
  places.reserve(rows.size());
  for (const std::int64_t row : rows) {
    const auto next = static_cast<std::int64_t>(rows_.size());
    const auto [entry, is_new] = place_of_.try_emplace(row, next);
    places.push_back(entry->second);
    if (is_new) {
      rows_.push_back(row);
    }
  }
  grow(rows_.size());
  const Span sums = this->values();
  device::host().add_rows({.sums = sums,
                           .range = {0, sums.numel()},
                           .width = width_,
                           .rows = places,
                           .values = values});
}

void TouchedRows::sort() {
  place_of_.clear();
  if (std::ranges::is_sorted(rows_)) {
    return;
  }
  std::vector<std::size_t> order(rows_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {}, [&](std::size_t place) { return rows_[place]; });
  std::vector<std::int64_t> rows;
  std::vector<std::byte> sorted(values_.size());
  rows.reserve(rows_.size());
  const std::size_t row_bytes = bytes_of(width_, dtype_);
  for (const std::size_t place : order) {
    std::memcpy(
        sorted.data() + rows.size() * row_bytes, values_.data() + place * row_bytes, row_bytes);
    rows.push_back(rows_[place]);
  }
  rows_ = std::move(rows);
  values_ = std::move(sorted);
}

void TouchedRows::gather(const std::vector<Range>& ranges, Communicator& owners, OwnedRows* known) {
  const Range mine = ranges[static_cast<std::size_t>(owners.rank())];
  OwnedRows all(rows_in(mine), width_, ranges, owners);
  const Counts& elements = all.elements();
  const std::int64_t total = std::accumulate(elements.begin(), elements.end(), std::int64_t{0});
  std::vector<std::byte> received(bytes_of(total, dtype_));
  owners.all_gather(sums_in(mine), Span(received.data(), total, dtype_), elements).wait();
  rows_.clear();
  values_.clear();
  // Owners and their rows ascend; what a row has with one owner and not with the next is in two
  // places.
  const std::byte* from = received.data();
  for (int owner = 0; owner < owners.size(); ++owner) {
    for (const std::int64_t row : all.rows(owner)) {
      const Range part = elements_of(row, width_, ranges[static_cast<std::size_t>(owner)]);
      if (rows_.empty() || rows_.back() != row) {
        rows_.push_back(row);
        values_.resize(bytes_of(static_cast<std::int64_t>(rows_.size()) * width_, dtype_));
      }
      const std::int64_t place =
          static_cast<std::int64_t>(rows_.size() - 1) * width_ + part.begin - row * width_;
      const std::size_t bytes = bytes_of(part.size(), dtype_);
      std::memcpy(values_.data() + bytes_of(place, dtype_), from, bytes);
      from += bytes;
    }
  }
  grow(rows_.size());
  if (known != nullptr) {
    *known = std::move(all);
  }
}

void TouchedRows::clear() {
  place_of_.clear();
  rows_ = std::vector<std::int64_t>();  // and their memory: the next step's may be few
  values_ = std::vector<std::byte>();
  charge_ = {};
}

Range TouchedRows::places_in(Range range) const {
  if (width_ == 0 || range.empty()) {
    return {};
  }
  const auto begin = std::ranges::lower_bound(rows_, range.begin / width_);
  const auto end = std::lower_bound(begin, rows_.end(), (range.end + width_ - 1) / width_);
  return {begin - rows_.begin(), end - rows_.begin()};
}

std::span<const std::int64_t> TouchedRows::rows_in(Range range) const {
  const Range places = places_in(range);
  return std::span(rows_).subspan(static_cast<std::size_t>(places.begin),
                                  static_cast<std::size_t>(places.size()));
}

ConstSpan TouchedRows::sums_in(Range range) const {
  const Range places = places_in(range);
  if (places.empty()) {
    return {values_.data(), 0, dtype_};
  }
  const auto at = [&](std::int64_t place) { return rows_[static_cast<std::size_t>(place)]; };
  // Only the first and the last row may be in the range in part.
  const std::int64_t begin =
      places.begin * width_ + std::max<std::int64_t>(0, range.begin - at(places.begin) * width_);
  const std::int64_t end = places.end * width_ -
                           std::max<std::int64_t>(0, (at(places.end - 1) + 1) * width_ - range.end);
  return {values_.data() + bytes_of(begin, dtype_), end - begin, dtype_};
}

void TouchedRows::copy(Range range, const Span& to) const {
  device::host().clear(to);
  const std::byte* from = sums_in(range).bytes();
  for (const Range& run : runs_of_rows(rows_in(range), width_, range)) {
    const std::size_t bytes = bytes_of(run.size(), dtype_);
    std::memcpy(to.bytes() + bytes_of(run.begin - range.begin, dtype_), from, bytes);
    from += bytes;
  }
}

}  // namespace trireme::detail
