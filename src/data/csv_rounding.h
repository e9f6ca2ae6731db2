#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include "data/csv_layout.h"

namespace trireme::detail {

// Large numbers of a column, which float32 (what samples are made of) rounds: of times in seconds
// that lie close together it may leave nothing to tell them apart.
class CsvRounding {
 public:
  void add(double value, const char* place) {
    constexpr double kAllWhole = 16777216;  // 2^24: up to it every whole number is held
    if (std::abs(value) >= kAllWhole) {
      add_large(value, place);
    }
  }
  // Those of rows that come later in the file.
  void append(const CsvRounding& later);

  // Whether numbers were rounded to steps that are coarse for how far they lie from each other.
  bool loses() const;
  // "FILE:3:1: column ...", with the first of them and what to do.
  // `parts`: of the file, of which the first was looked at.
  std::string warning(const MappedFile& file, const CsvColumn& column, int parts) const;

 private:
  void add_large(double value, const char* place);
  double step() const;

  std::int64_t large_ = 0;
  std::int64_t rounded_ = 0;
  const char* first_ = nullptr;  // of those that are rounded
  double low_ = 0;               // of all large ones
  double high_ = 0;
};

}  // namespace trireme::detail
