#include "data/csv_rounding.h"

#include <algorithm>
#include <charconv>

#include "data/text_lines.h"

namespace trireme::detail {
namespace {

// With as many steps between its numbers a column says about as much as in any other unit.
constexpr double kEnoughSteps = 1024;

// Not 1.7e+09, which hides what this is about; float32's largest has 39 digits.
std::string all_digits(double value) {
  char text[64];
  return {text, std::to_chars(text, text + sizeof(text), value, std::chars_format::fixed).ptr};
}

}  // namespace

void CsvRounding::add_large(double value, const char* place) {
  low_ = large_ == 0 ? value : std::min(low_, value);
  high_ = large_ == 0 ? value : std::max(high_, value);
  ++large_;
  if (static_cast<double>(static_cast<float>(value)) != value) {
    first_ = rounded_ == 0 ? place : first_;
    ++rounded_;
  }
}

void CsvRounding::append(const CsvRounding& later) {
  if (later.large_ == 0) {
    return;
  }
  low_ = large_ == 0 ? later.low_ : std::min(low_, later.low_);
  high_ = large_ == 0 ? later.high_ : std::max(high_, later.high_);
  large_ += later.large_;
  first_ = rounded_ == 0 ? later.first_ : first_;
  rounded_ += later.rounded_;
}

double CsvRounding::step() const {
  const auto largest = static_cast<float>(std::max(std::abs(low_), std::abs(high_)));
  return static_cast<double>(largest) - static_cast<double>(std::nextafter(largest, 0.0F));
}

bool CsvRounding::loses() const {
  return rounded_ > 0 && high_ > low_ && high_ - low_ < kEnoughSteps * step();
}

std::string CsvRounding::warning(const MappedFile& file, const CsvColumn& column, int parts) const {
  const char* line = first_;
  while (line > file.begin() && line[-1] != '\n') {
    --line;
  }
  return concat(
      "{}:{}:{}: {} has {}{}{} float32, the type of samples, cannot represent: between {} and {} "
      "it "
      "has only every {}th whole number. Subtract a common offset in the file; --normalise comes "
      "too late for that",
      {file.path(),
       1 + std::count(file.begin(), first_, '\n'),
       first_ - line + 1,
       column.title,
       rounded_,
       rounded_ == 1 ? " number" : " numbers (this is the first)",
       parts > 1 ? concat(", in the 1/", parts, " of the file that rank 0 has read, that")
                 : " that",
       all_digits(low_),
       all_digits(high_),
       all_digits(step())});
}

}  // namespace trireme::detail
