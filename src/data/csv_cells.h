#pragma once

#include <string>
#include <string_view>

namespace trireme::detail {

// Thrown for quotes that do not fit: where the line's cells end is not known then.
struct BadQuotes {
  const char* place;
  std::string message;
};

// Walks over the cells of one line of a CSV file. A cell in quotes may hold separators and,
// doubled, quotes, but no line break: lines are found before quotes are looked at.
class CsvCells {
 public:
  CsvCells(std::string_view line, char separator)
      : next_(line.data()), end_(line.data() + line.size()), separator_(separator) {}

  // False after the last cell. Throws BadQuotes.
  bool next();
  // The cell, without quotes and blanks around it. Valid until the next call of next().
  std::string_view text() const { return doubled_ ? unescaped_ : text_; }
  const char* place() const { return place_; }

 private:
  void next_quoted();
  bool skips(char c) const { return (c == ' ' || c == '\t') && c != separator_; }

  const char* next_;  // null after the last cell
  const char* end_;
  char separator_;
  const char* place_ = nullptr;
  std::string_view text_;
  bool doubled_ = false;   // the cell had doubled quotes, and is
  std::string unescaped_;  // this
};

}  // namespace trireme::detail
