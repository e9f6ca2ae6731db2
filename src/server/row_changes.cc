#include "server/row_changes.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>
#include <unordered_map>

#include "trireme/core/index.h"

namespace trireme::detail {
namespace {

constexpr std::int64_t kGone = std::numeric_limits<std::int64_t>::max();

std::size_t bytes_of(std::int64_t numel, Dtype dtype) {
  return static_cast<std::size_t>(numel) * dtype_bytes(dtype);
}

Range elements_of(std::int64_t row, std::int64_t width, Range range) {
  return intersection({row * width, (row + 1) * width}, range);
}

std::vector<std::int64_t> both(const std::vector<std::int64_t>& a,
                               const std::vector<std::int64_t>& b) {
  std::vector<std::int64_t> all;
  std::ranges::set_union(a, b, std::back_inserter(all));
  return all;
}

}  // namespace

std::int64_t elements_in(const std::vector<std::int64_t>& rows, std::int64_t width, Range range) {
  std::int64_t numel = 0;
  for (const std::int64_t row : rows) {
    numel += elements_of(row, width, range).size();
  }
  return numel;
}

RowChanges::RowChanges(std::vector<OwnedPart> parts, int workers, bool keeps_values)
    : parts_(std::move(parts)), keeps_values_(keeps_values), has_(index(workers), 0) {}

void RowChanges::begin_at(std::int64_t version) {
  changes_.clear();
  for (std::int64_t& its : has_) {
    its = its == kGone ? kGone : version;
  }
}

void RowChanges::made(std::int64_t version,
                      const std::vector<ChangedRows>& changed,
                      const Owned& owned) {
  if (parts_.empty()) {
    return;
  }
  std::vector<ChangedRows>& kept = changes_[version];
  kept = changed;
  for (std::size_t i = 0; i < kept.size() && keeps_values_; ++i) {
    const std::int64_t width = parts_[i].width;
    const ConstSpan now = owned(parts_[i].unit);
    if (kept[i].whole) {
      kept[i].values.assign(now.bytes(), now.bytes() + now.size_bytes());
      continue;
    }
    for (const std::int64_t row : kept[i].rows) {
      const Range part = elements_of(row, width, parts_[i].range);
      const std::byte* from =
          now.bytes() + bytes_of(part.begin - parts_[i].range.begin, now.dtype());
      kept[i].values.insert(kept[i].values.end(), from, from + bytes_of(part.size(), now.dtype()));
    }
  }
  while (!keeps_values_ && changes_.size() > kMostVersions) {
    const auto oldest = changes_.begin();
    const auto next = std::next(oldest);
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      next->second[i].whole |= oldest->second[i].whole;
      next->second[i].rows = next->second[i].whole
                                 ? std::vector<std::int64_t>()
                                 : both(oldest->second[i].rows, next->second[i].rows);
    }
    changes_.erase(oldest);
  }
}

std::vector<ChangedRows> RowChanges::answer(int worker,
                                            std::int64_t version,
                                            std::int64_t newest,
                                            const Owned& owned) {
  std::vector<ChangedRows> all(parts_.size());
  const auto begin = changes_.upper_bound(has_[index(worker)]);
  const auto end = changes_.upper_bound(version);
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    ChangedRows& answer = all[i];
    for (auto it = begin; it != end; ++it) {
      answer.whole |= it->second[i].whole;
      answer.rows = both(answer.rows, it->second[i].rows);
    }
    if (answer.whole) {
      answer.rows.clear();
    }
    const Range range = parts_[i].range;
    const std::int64_t width = parts_[i].width;
    const ConstSpan now = owned(parts_[i].unit);
    const auto place = [&](Range part) { return bytes_of(part.begin - range.begin, now.dtype()); };
    const bool is_newest = version == newest;
    if (answer.whole) {
      answer.values.assign(now.bytes(), now.bytes() + now.size_bytes());
      if (!is_newest) {
        make_older(answer.values, i, now.dtype(), {begin, end});
      }
      continue;
    }
    // Of an older version, where the last change that it knows had put them.
    std::unordered_map<std::int64_t, const std::byte*> then;
    for (auto it = begin; it != end && !is_newest; ++it) {
      const std::byte* from = it->second[i].values.data();
      for (const std::int64_t row : it->second[i].rows) {
        then[row] = from;
        from += bytes_of(elements_of(row, width, range).size(), now.dtype());
      }
    }
    for (const std::int64_t row : answer.rows) {
      const Range part = elements_of(row, width, range);
      const std::byte* from = is_newest ? now.bytes() + place(part) : then.at(row);
      answer.values.insert(answer.values.end(), from, from + bytes_of(part.size(), now.dtype()));
    }
  }
  has_[index(worker)] = std::max(has_[index(worker)], version);
  forget();
  return all;
}

// All that the part was in an older version: the last change of all of it, and those of rows after.
void RowChanges::make_older(std::vector<std::byte>& values,
                            std::size_t part,
                            Dtype dtype,
                            Changes some) const {
  const std::int64_t width = parts_[part].width;
  for (auto it = some.first; it != some.second; ++it) {
    const ChangedRows& made = it->second[part];
    if (made.whole) {
      values = made.values;
      continue;
    }
    const std::byte* from = made.values.data();
    for (const std::int64_t row : made.rows) {
      const Range its = elements_of(row, width, parts_[part].range);
      std::memcpy(values.data() + bytes_of(its.begin - parts_[part].range.begin, dtype),
                  from,
                  bytes_of(its.size(), dtype));
      from += bytes_of(its.size(), dtype);
    }
  }
}

void RowChanges::leaves(int worker) {
  has_[index(worker)] = kGone;
  forget();
}

void RowChanges::forget() {
  const std::int64_t oldest = *std::ranges::min_element(has_);
  changes_.erase(changes_.begin(), changes_.upper_bound(oldest));
}

}  // namespace trireme::detail
