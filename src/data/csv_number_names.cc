#include "data/csv_number_names.h"

#include <algorithm>
#include <limits>
#include <set>
#include <string_view>
#include <vector>

#include "data/csv_cells.h"
#include "data/text_lines.h"

namespace trireme::detail {
namespace {

using Kind = CsvColumn::Kind;

constexpr std::int64_t kMostRows = 1000;
// One row of so many may be the only one of whole numbers by chance.
constexpr std::int64_t kFewestRows = 20;

// As it is written: 3.0 is a measurement, 3 may be a name.
bool is_whole(std::string_view cell) {
  return !cell.empty() && std::ranges::all_of(cell, [](char c) { return c >= '0' && c <= '9'; });
}

bool is_fraction(std::string_view cell) {
  return cell.find_first_of(".eE") != std::string_view::npos;
}

struct Column {
  bool asked = false;  // has a number in the first line, which may be its name
  double name = 0;
  bool has_fractions = false;
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  bool far_from_name() const {
    if (low > high) {
      return false;  // it has no numbers
    }
    const double distance = std::max(name - high, low - name);
    return distance > std::max(high - low, 1.0);
  }
};

std::vector<std::string> cells_of(std::string_view line, char separator) {
  std::vector<std::string> texts;
  try {
    for (CsvCells cells(line, separator); cells.next();) {
      texts.emplace_back(cells.text());
    }
  } catch (const BadQuotes&) {
    texts.clear();
  }
  return texts;
}

// A target that is a class counts as one of the names, but its column says nothing about them.
bool may_name_all(const std::vector<std::string>& first,
                  const CsvLayout& layout,
                  bool regression,
                  bool own_class,
                  std::vector<Column>& columns) {
  std::set<std::string> names;
  std::size_t numbers = 0;
  for (std::size_t i = 0; i < first.size(); ++i) {
    const Kind kind = layout.columns[i].kind;
    const bool index = i == 0 && first[i].empty();  // of the rows, which often has no name
    const bool word = kind == Kind::kTarget && !regression && own_class;
    if (kind == Kind::kCategory || kind == Kind::kIgnored || index || (word && !first[i].empty())) {
      continue;
    }
    if (!is_whole(first[i])) {
      return false;
    }
    names.insert(first[i]);
    ++numbers;
    columns[i].asked = kind == Kind::kValue || regression;
    columns[i].name = parse_number(first[i]).value_or(0);
  }
  return names.size() == numbers &&
         std::ranges::any_of(columns, [](const Column& column) { return column.asked; });
}

}  // namespace

std::string why_may_be_names(const MappedFile& file,
                             const CsvLayout& layout,
                             const MissingValues& missing,
                             bool regression,
                             bool own_class,
                             const char* begin) {
  const char* from = begin;
  const auto line = next_line(file, from);
  const std::vector<std::string> first = cells_of(line.value_or(""), layout.separator);
  std::vector<Column> columns(layout.columns.size());
  if (first.size() != columns.size() ||
      !may_name_all(first, layout, regression, own_class, columns)) {
    return "";
  }
  std::vector<std::vector<std::string>> rows;
  for (std::int64_t i = 0; i < kMostRows; ++i) {
    const auto next = next_line(file, from);
    if (!next) {
      break;
    }
    rows.push_back(cells_of(*next, layout.separator));
    if (rows.back().size() != columns.size()) {
      rows.pop_back();
    }
  }
  if (static_cast<std::int64_t>(rows.size()) < kFewestRows) {
    return "";
  }
  for (const std::vector<std::string>& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      const auto value = missing.contain_in_numbers(row[i]) ? std::nullopt : parse_number(row[i]);
      if (columns[i].asked && value) {
        columns[i].has_fractions = columns[i].has_fractions || is_fraction(row[i]);
        columns[i].low = std::min(columns[i].low, *value);
        columns[i].high = std::max(columns[i].high, *value);
      }
    }
  }
  const bool all_unlike = std::ranges::all_of(columns, [](const Column& column) {
    return !column.asked || column.has_fractions || column.far_from_name();
  });
  const bool any_fractions = std::ranges::any_of(columns, &Column::has_fractions);
  // A row that has whole numbers there, too, shows that such rows occur.
  const bool another = any_fractions && std::ranges::any_of(rows, [&](const auto& row) {
                         for (std::size_t i = 0; i < row.size(); ++i) {
                           if (columns[i].has_fractions &&
                               (is_fraction(row[i]) || missing.contain_in_numbers(row[i]))) {
                             return false;
                           }
                         }
                         return true;
                       });
  return !all_unlike || another ? std::string()
         : any_fractions
             ? "whole numbers, no two alike, above columns of numbers with fractions"
             : "whole numbers, no two alike, far from all other numbers of their columns";
}

}  // namespace trireme::detail
