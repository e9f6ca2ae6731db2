#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include "data/csv_layout.h"

namespace trireme::detail {

// Numbers with fewer digits than those of a file may have.
struct RoundedType {
  const char* name;
  int bits;           // of the digits of a number
  double least_step;  // between any two numbers
  double largest;
  // Smaller numbers are not looked at.
  double from;
  // With as many steps between its numbers a column says about as much as in any other unit.
  double enough_steps;
  // Whether normalised samples are rounded to it, and not those that are to be normalised.
  bool comes_after_normalising;
};

// What all samples are made of. Up to 2^24 it holds every whole number.
inline constexpr RoundedType kFloat32Samples = {
    "float32", 24, 0x1p-149, 0x1.fffffep127, 16777216, 1024, false};
// What a run may compute in. A column from 0 on has 128 steps in bfloat16 at least; where there are
// 32, rounding changes a number by a twentieth of the standard deviation or so.
inline constexpr RoundedType kBFloat16Samples = {"bfloat16", 8, 0x1p-133, 0x1.fep127, 0, 32, true};
inline constexpr RoundedType kFloat16Samples = {"float16", 11, 0x1p-24, 65504, 0, 32, true};

// Numbers of a column that a type rounds: of times in seconds that lie close together float32 may
// leave nothing to tell them apart, of years bfloat16.
class CsvRounding {
 public:
  explicit CsvRounding(const RoundedType& type) : type_(&type) {}

  void add(double value, const char* place) {
    if (std::abs(value) >= type_->from) {
      look_at(value, place);
    }
  }
  // Those of rows that come later in the file.
  void append(const CsvRounding& later);

  // Whether numbers became infinite, or were rounded to steps that are coarse for how far they lie
  // from each other.
  bool loses() const;
  // "FILE:3:1: column ...", with the first of them and what to do.
  // `parts`: of the file, of which the first was looked at.
  std::string warning(const MappedFile& file, const CsvColumn& column, int parts) const;

 private:
  struct Places {
    std::int64_t count = 0;
    const char* first = nullptr;

    void add(const char* place);
    void append(const Places& later);
  };

  void look_at(double value, const char* place);
  double step() const;
  std::string what_happens() const;

  const RoundedType* type_;
  std::int64_t seen_ = 0;  // of those that are looked at
  Places rounded_;
  Places infinite_;
  double low_ = 0;  // of all that are seen
  double high_ = 0;
};

}  // namespace trireme::detail
