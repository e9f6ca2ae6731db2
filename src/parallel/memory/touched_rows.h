#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "trireme/comm/communicator.h"
#include "trireme/core/memory_ledger.h"
#include "trireme/core/span.h"
#include "trireme/shard/range.h"

namespace trireme::detail {

// Elements that rows of a parameter are, inside of `range`, as runs: neighbouring rows together.
// `rows` ascend.
std::vector<Range> runs_of_rows(std::span<const std::int64_t> rows,
                                std::int64_t width,
                                Range range);

// Rows of one parameter that each owner has in its range, as all of them know it. A row in which a
// range ends and the next begins is in both.
class OwnedRows {
 public:
  OwnedRows() = default;
  // `mine` ascend. Collective.
  OwnedRows(std::span<const std::int64_t> mine,
            std::int64_t width,
            const std::vector<Range>& ranges,
            Communicator& owners);

  // What they are of each owner's range, and their number of elements.
  std::vector<Range> runs(int owner) const;
  const Counts& elements() const { return elements_; }
  std::span<const std::int64_t> rows(int owner) const;
  std::size_t bytes() const { return all_.size() * sizeof(std::int64_t); }

 private:
  std::int64_t width_ = 0;
  std::vector<Range> ranges_;
  std::vector<std::int64_t> all_;   // owner after owner
  std::vector<std::size_t> first_;  // in `all_`, by owner, and the end
  Counts elements_;
};

// The sums of a parameter whose gradients come as rows (Embedding with sparse = true): those of the
// rows that a step has touched, which begin as zeros, and no others.
class TouchedRows {
 public:
  TouchedRows() = default;
  TouchedRows(std::int64_t width, Dtype dtype, MemoryLedger& ledger);

  // Adds rows one after another; one that comes several times, in the order of the list. `values`
  // as device::RowSums has them.
  void add(std::span<const std::int64_t> rows, const ConstSpan& values);
  // No more will be added. From here on they are in order, and can be read.
  void sort();
  // Becomes what the owners have, each of its range. Collective.
  void gather(const std::vector<Range>& ranges, Communicator& owners, OwnedRows* known = nullptr);
  void clear();

  std::int64_t width() const { return width_; }
  std::span<const std::int64_t> rows() const { return rows_; }
  // Of rows that have elements in this range of the parameter: which they are, ...
  std::span<const std::int64_t> rows_in(Range range) const;
  // ... and the sums of those elements, row after row.
  ConstSpan sums_in(Range range) const;
  // The sums of all elements in a range, with the zeros between rows.
  void copy(Range range, const Span& to) const;

 private:
  Range places_in(Range range) const;  // in rows_
  Span values();
  void grow(std::size_t rows);

  std::int64_t width_ = 0;
  Dtype dtype_ = Dtype::kFloat32;
  MemoryLedger* ledger_ = nullptr;
  MemoryLedger::Charge charge_;
  std::vector<std::int64_t> rows_;
  std::vector<std::byte> values_;                            // row after row, in the order of rows_
  std::unordered_map<std::int64_t, std::int64_t> place_of_;  // while rows are added
};

}  // namespace trireme::detail
