#include "data/csv_cells.h"

#include <cstring>

#include "data/text_lines.h"
#include "trireme/core/printable.h"

namespace trireme::detail {

bool CsvCells::next() {
  if (next_ == nullptr) {
    return false;
  }
  while (next_ < end_ && skips(*next_)) {
    ++next_;
  }
  place_ = next_;
  doubled_ = false;
  if (next_ < end_ && *next_ == '"') {
    next_quoted();
    return true;
  }
  // Cells are short: a plain loop beats a call of memchr.
  while (next_ < end_ && *next_ != separator_) {
    ++next_;
  }
  const char* cell_end = next_;
  next_ = next_ < end_ ? next_ + 1 : nullptr;
  while (cell_end > place_ && skips(cell_end[-1])) {
    --cell_end;
  }
  text_ = {place_, static_cast<std::size_t>(cell_end - place_)};
  return true;
}

void CsvCells::next_quoted() {
  const char* begin = place_ + 1;
  unescaped_.clear();
  const char* quote = begin;
  for (;; quote += 2) {
    const void* found = std::memchr(quote, '"', static_cast<std::size_t>(end_ - quote));
    if (found == nullptr) {
      throw BadQuotes{place_,
                      concat("expected a closing quote before the end of the line, found none in ",
                             shown({place_, static_cast<std::size_t>(end_ - place_)}),
                             " (cells with line breaks are not understood)")};
    }
    const char* run = quote;
    quote = static_cast<const char*>(found);
    if (doubled_) {
      unescaped_.append(run, quote);
    }
    if (quote + 1 == end_ || quote[1] != '"') {
      break;
    }
    if (!doubled_) {
      unescaped_.assign(begin, quote);
      doubled_ = true;
    }
    unescaped_ += '"';
  }
  text_ = {begin, static_cast<std::size_t>(quote - begin)};
  const char* after = quote + 1;
  while (after < end_ && skips(*after)) {
    ++after;
  }
  if (after < end_ && *after != separator_) {
    throw BadQuotes{
        after,
        concat("expected a separator after a closing quote, found '", printable({after, 1}), "'")};
  }
  next_ = after < end_ ? after + 1 : nullptr;
}

}  // namespace trireme::detail
