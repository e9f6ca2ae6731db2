#include "data/csv_rounding.h"

#include <algorithm>
#include <charconv>

#include "data/text_lines.h"

namespace trireme::detail {
namespace {

// Not 1.7e+09, which hides what this is about; float32's largest has 39 digits.
std::string all_digits(double value) {
  char text[64];
  return {text, std::to_chars(text, text + sizeof(text), value, std::chars_format::fixed).ptr};
}

// Between a number of this size and the next larger one.
double step_at(double size, const RoundedType& type) {
  return size == 0 ? type.least_step
                   : std::max(std::ldexp(1, std::ilogb(size) - type.bits + 1), type.least_step);
}

double rounded(double value, const RoundedType& type) {
  const double step = step_at(std::abs(value), type);
  return std::nearbyint(value / step) * step;
}

// Steps are powers of two: "2nd", "32nd", "512th".
std::string ordinal(double step) {
  const std::string digits = all_digits(step);
  return digits + (digits.ends_with('2') && !digits.ends_with("12") ? "nd" : "th");
}

std::string numbers_in_steps(double step) {
  return step > 1    ? concat("only every ", ordinal(step), " whole number")
         : step == 1 ? "only whole numbers"
                     : concat("only numbers that are ", all_digits(step), " apart");
}

}  // namespace

void CsvRounding::Places::add(const char* place) {
  first = count == 0 ? place : first;
  ++count;
}

void CsvRounding::Places::append(const Places& later) {
  first = count == 0 ? later.first : first;
  count += later.count;
}

void CsvRounding::look_at(double value, const char* place) {
  low_ = seen_ == 0 ? value : std::min(low_, value);
  high_ = seen_ == 0 ? value : std::max(high_, value);
  ++seen_;
  const double found = rounded(value, *type_);
  if (std::abs(found) > type_->largest) {
    infinite_.add(place);
  } else if (found != value) {
    rounded_.add(place);
  }
}

void CsvRounding::append(const CsvRounding& later) {
  if (later.seen_ == 0) {
    return;
  }
  low_ = seen_ == 0 ? later.low_ : std::min(low_, later.low_);
  high_ = seen_ == 0 ? later.high_ : std::max(high_, later.high_);
  seen_ += later.seen_;
  rounded_.append(later.rounded_);
  infinite_.append(later.infinite_);
}

// Below the largest.
double CsvRounding::step() const {
  const double largest = std::abs(rounded(std::max(std::abs(low_), std::abs(high_)), *type_));
  return step_at(std::nextafter(largest, 0.0), *type_);
}

bool CsvRounding::loses() const {
  return infinite_.count > 0 ||
         (rounded_.count > 0 && high_ > low_ && high_ - low_ < type_->enough_steps * step());
}

std::string CsvRounding::what_happens() const {
  if (infinite_.count > 0) {
    return concat("makes infinite: its largest number is ", all_digits(type_->largest));
  }
  return concat("cannot represent: between {} and {} it has {}",
                {all_digits(low_), all_digits(high_), numbers_in_steps(step())});
}

std::string CsvRounding::warning(const MappedFile& file, const CsvColumn& column, int parts) const {
  const Places& places = infinite_.count > 0 ? infinite_ : rounded_;
  const char* line = places.first;
  while (line > file.begin() && line[-1] != '\n') {
    --line;
  }
  return concat(
      "{}:{}:{}: {} has {}{}{} {}, {}, {}. {}",
      {file.path(),
       1 + std::count(file.begin(), places.first, '\n'),
       places.first - line + 1,
       column.title,
       places.count,
       places.count == 1 ? " number" : " numbers (this is the first)",
       parts > 1 ? concat(", in the 1/", parts, " of the file that rank 0 has read, that")
                 : " that",
       type_->name,
       type_->comes_after_normalising ? "in which this run computes" : "the type of samples",
       what_happens(),
       type_->comes_after_normalising
           ? "Use --normalise standard, which comes before the rounding, or --precision float32"
           : "Subtract a common offset in the file; --normalise comes too late for that"});
}

}  // namespace trireme::detail
