#include "data/csv_row_check.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "data/csv_cells.h"
#include "data/csv_header.h"
#include "data/text_lines.h"
#include "trireme/core/printable.h"

namespace trireme::detail {
namespace {

using Kind = CsvColumn::Kind;
using Missing = CsvOptions::Missing;
using Unseen = CsvOptions::Unseen;

class RowIndexer {
 public:
  RowIndexer(const MappedFile& file,
             const CsvLayout& layout,
             const CsvRules& rules,
             const ClassNames* classes,
             const CsvStretch& checked)
      : file_(file), layout_(layout), rules_(rules), classes_(classes), checked_(checked) {
    // Rows that are to be dropped, and categories, are found by looking at every cell.
    reads_all_ = rules.missing == Missing::kDrop ||
                 std::any_of(layout.columns.begin(), layout.columns.end(), [](const auto& column) {
                   return column.kind == Kind::kCategory && column.categories == nullptr;
                 });
  }

  void index(CsvPiece& piece) const {
    piece.categories.resize(layout_.columns.size());
    piece.rounding.assign(layout_.columns.size(), CsvRounding(kFloat32Samples));
    if (rules_.rounded != CsvOptions::Rounded::kFloat32) {
      piece.further_rounding.assign(
          layout_.columns.size(),
          CsvRounding(rules_.rounded == CsvOptions::Rounded::kFloat16 ? kFloat16Samples
                                                                      : kBFloat16Samples));
    }
    const char* from = piece.begin;
    while (const auto line = next_line(file_, from)) {
      if (line->data() >= piece.end) {
        break;
      }
      const bool checked = line->data() >= checked_.begin && line->data() < checked_.end;
      const Row row = checked || reads_all_ ? read(*line, piece, checked) : glance(*line, piece);
      if (row.dropped) {
        piece.rows.dropped.push_back(piece.count);
      } else {
        piece.rows.offsets.push_back(file_.offset_of(line->data()));
        if (!rules_.regression && layout_.target >= 0) {
          piece.rows.labels.push_back(row.label);
        }
      }
      ++piece.count;
    }
  }

 private:
  struct Row {
    std::int32_t label = 0;
    bool dropped = false;
  };

  // Looks at every cell.
  Row read(std::string_view line, CsvPiece& piece, bool report) const {
    Row row;
    if (const auto zero = line.find('\0'); report && zero != std::string_view::npos) {
      piece.faults.add([&] {
        return DataFault{file_.offset_of(line.data() + zero), zero_byte_problem(), ""};
      });
      return row;
    }
    if (rules_.missing == Missing::kDrop && lacks_something(line)) {
      row.dropped = true;  // before its words count as classes and categories
      return row;
    }
    DataFaults found(piece.faults.room());
    CsvCells cells(line, layout_.separator);
    std::int64_t column = 0;
    try {
      for (; cells.next(); ++column) {
        if (column < layout_.size()) {
          look_at(cells, column, piece, row, found);
        }
      }
    } catch (const BadQuotes& bad) {
      if (report) {
        piece.faults.add([&] { return DataFault{file_.offset_of(bad.place), bad.message, ""}; });
      }
      return row;
    }
    if (column != layout_.size()) {
      found = DataFaults(piece.faults.room());
      found.add([&] {
        return DataFault{
            file_.offset_of(line.data()),
            concat("expected ", layout_.size(), " cells, as in the first line, found ", column),
            ""};
      });
    }
    if (report) {
      piece.faults.append(found);
    }
    return row;
  }

  // Whether a row that has all its cells has an empty one among them.
  bool lacks_something(std::string_view line) const {
    bool lacks = false;
    std::int64_t column = 0;
    try {
      for (CsvCells cells(line, layout_.separator); cells.next(); ++column) {
        lacks =
            lacks || (column < layout_.size() && is_missing(layout_.column(column), cells.text()));
      }
    } catch (const BadQuotes&) {
      return false;
    }
    return lacks && column == layout_.size();
  }

  // A class may be called what stands for nothing in other columns.
  bool is_missing(const CsvColumn& column, std::string_view text) const {
    switch (column.kind) {
      case Kind::kIgnored:
        return false;
      case Kind::kCategory:
        return rules_.missing_values.contain(text);
      case Kind::kTarget:
        return rules_.regression ? rules_.missing_values.contain_in_numbers(text) : text.empty();
      case Kind::kValue:
        break;
    }
    return rules_.missing_values.contain_in_numbers(text);
  }

  void look_at(const CsvCells& cells,
               std::int64_t number,
               CsvPiece& piece,
               Row& row,
               DataFaults& found) const {
    const CsvColumn& column = layout_.column(number);
    const std::string_view text = cells.text();
    // Both are asked for only where they are shown.
    const auto refuse = [&](const auto& message, const auto& advice) {
      found.add([&] { return DataFault{file_.offset_of(cells.place()), message(), advice()}; });
    };
    if (column.kind == Kind::kIgnored) {
      return;
    }
    if (is_missing(column, text)) {
      refuse_missing(column, text, refuse);
    } else if (column.kind == Kind::kTarget && !rules_.regression) {
      row.label = label_of(text, column, piece, refuse);
    } else if (column.kind == Kind::kCategory) {
      take_category(text, column, piece.categories[static_cast<std::size_t>(number)], refuse);
    } else if (const auto value = csv_number_written(text)) {
      piece.rounding[static_cast<std::size_t>(number)].add(*value, cells.place());
      // What is predicted stays in float32.
      if (!piece.further_rounding.empty() && column.kind == Kind::kValue) {
        piece.further_rounding[static_cast<std::size_t>(number)].add(*value, cells.place());
      }
    } else {
      refuse(
          [&] {
            return concat("expected a finite number in ", column.title, ", found ", shown(text));
          },
          [&] { return advice_for(text, column); });
    }
  }

  // About what is no number where one was expected.
  std::string advice_for(std::string_view text, const CsvColumn& column) const {
    if (parse_number(text)) {
      return "samples are float32, whose numbers end at 3.4e38";
    }
    if (has_thousands(text)) {
      return "if the commas separate thousands, take them out; if they are decimal commas, write "
             "points instead";
    }
    if (has_decimal_comma(text)) {
      return decimal_comma_advice();
    }
    if (column.kind == Kind::kTarget) {
      return "without --regression, words of the target are classes";
    }
    if (is_csv_word(std::string(text))) {
      return "columns of words are named with --categorical";
    }
    return std::ranges::none_of(text, is_digit) && rules_.missing != Missing::kRefuse
               ? missing_word_advice(text)
               : "";
  }

  // "-", say, where values may be missing.
  std::string missing_word_advice(std::string_view text) const {
    std::string words;
    for (const std::string& word : rules_.missing_words) {
      words += word + ",";
    }
    return concat(
        "if {} stands for a missing value: --missing-values '{}{}' (the list replaces "
        "the default one)",
        {shown(text), words, printable(text)});
  }

  static bool is_digit(char c) { return c >= '0' && c <= '9'; }

  // "1,000", "-12,345.5": up to three digits, and three after each comma.
  static bool has_thousands(std::string_view text) {
    text.remove_prefix(text.starts_with('-') || text.starts_with('+') ? 1 : 0);
    std::size_t at = 0;
    const auto digits = [&](std::size_t most) {
      const std::size_t begin = at;
      while (at < text.size() && at - begin < most && is_digit(text[at])) {
        ++at;
      }
      return at - begin;
    };
    if (digits(3) == 0 || text.substr(at, 1) != ",") {
      return false;
    }
    while (text.substr(at, 1) == ",") {
      ++at;
      if (digits(3) != 3) {
        return false;
      }
    }
    if (text.substr(at, 1) == ".") {
      ++at;
      digits(text.size());
    }
    return at == text.size();
  }

  // "1,5", as spreadsheets write it in many countries.
  static bool has_decimal_comma(std::string_view text) {
    std::string point(text);
    const std::size_t comma = point.find(',');
    if (comma == std::string::npos || comma == 0) {
      return false;
    }
    point[comma] = '.';
    return parse_number(point).has_value();
  }
  const char* decimal_comma_advice() const {
    return layout_.separator == ','
               ? "if the commas are decimal commas, write points instead (1.5)"
               : "if the commas are decimal commas, write points instead (sed 's/,/./g' OLD > NEW)";
  }

  template <class Refuse>
  void refuse_missing(const CsvColumn& column, std::string_view text, const Refuse& refuse) const {
    const bool target = column.kind == Kind::kTarget;
    if (target || rules_.missing == Missing::kRefuse) {
      const char* wanted = target && !rules_.regression     ? "a class"
                           : column.kind == Kind::kCategory ? "a category"
                                                            : "a finite number";
      refuse(
          [&] {
            return concat("expected {} in {}, found {}",
                          {wanted,
                           column.title,
                           text.empty() ? target && !rules_.regression ? "none" : "an empty cell"
                                        : shown(text)});
          },
          [&] {
            return target ? "rows without a target: in training, --missing drop leaves them "
                            "out; trireme predict --targets no predicts them as well"
                          : "empty cells, and words for a missing value such as NaN, are allowed "
                            "with --missing mean, zero or drop";
          });
    }
  }

  template <class Refuse>
  std::int32_t label_of(std::string_view text,
                        const CsvColumn& column,
                        CsvPiece& piece,
                        const Refuse& refuse) const {
    if (classes_ == nullptr) {
      return added(text, column, piece.classes, kMostCsvClasses);
    }
    const auto known = classes_->class_of(text);
    if (!known) {
      refuse(
          [&] {
            return concat("expected a class of the training file ({}), found {}",
                          {classes_->list(), shown(text)});
          },
          [] { return ""; });
    }
    return known.value_or(0);
  }

  template <class Refuse>
  void take_category(std::string_view text,
                     const CsvColumn& column,
                     ClassNames& found,
                     const Refuse& refuse) const {
    if (column.categories == nullptr) {
      added(text, column, found, kMostCsvCategories);
    } else if (rules_.unseen == Unseen::kRefuse && !column.categories->class_of(text)) {
      refuse(
          [&] {
            return concat("expected a category that the training file has in {} ({}), found {}",
                          {column.title, column.categories->list(), shown(text)});
          },
          [] {
            return "a model trained with --unseen ignore ignores categories that the training file "
                   "does not have";
          });
    }
  }

  std::int32_t added(std::string_view text,
                     const CsvColumn& column,
                     ClassNames& names,
                     std::int64_t most) const {
    const std::int32_t number = names.add(text);
    if (names.size() > most) {
      refuse_so_many(file_, text_begin(file_), column);
    }
    return number;
  }

  // The class alone, of a row that others check.
  Row glance(std::string_view line, CsvPiece& piece) const {
    Row row;
    if (rules_.regression || layout_.target < 0) {
      return row;
    }
    // The last column is the usual one: where no quote is in it, what follows the last separator.
    const std::string_view end = line.substr(line.rfind(layout_.separator) + 1);
    const bool last = layout_.is_last(layout_.target) && end.find('"') == std::string_view::npos;
    CsvCells cells(last ? end : line, layout_.separator);
    try {
      std::int64_t column = last ? layout_.target : 0;
      while (column <= layout_.target && cells.next()) {
        ++column;
      }
      if (column <= layout_.target) {
        return row;  // too short, as whoever checks it says
      }
    } catch (const BadQuotes&) {
      return row;  // the same
    }
    const auto ignored = [](const auto&, const auto&) {};
    row.label = label_of(cells.text(), layout_.column(layout_.target), piece, ignored);
    return row;
  }

  const MappedFile& file_;
  const CsvLayout& layout_;
  const CsvRules& rules_;
  const ClassNames* classes_;
  CsvStretch checked_;
  bool reads_all_ = false;
};

}  // namespace

std::optional<double> csv_number_written(std::string_view cell) {
  const auto value = parse_number(cell);
  const bool fits = value && std::abs(*value) <= std::numeric_limits<float>::max();
  return fits ? value : std::nullopt;
}

std::optional<float> csv_number(std::string_view cell) {
  const auto value = csv_number_written(cell);
  return value ? std::optional(static_cast<float>(*value)) : std::nullopt;
}

void refuse_so_many(const MappedFile& file, const char* place, const CsvColumn& column) {
  const bool target = column.kind == Kind::kTarget;
  throw_text_error(file,
                   place,
                   concat("expected at most ",
                          target ? kMostCsvClasses : kMostCsvCategories,
                          target ? " classes in " : " categories in ",
                          column.title,
                          target ? ", found more: if it is a number to predict, ask for regression"
                                 : ", found more: if it holds numbers, or names of the rows, it is "
                                   "not categorical"));
}

void index_piece(const MappedFile& file,
                 const CsvLayout& layout,
                 const CsvRules& rules,
                 const ClassNames* classes,
                 const CsvStretch& checked,
                 CsvPiece& piece) {
  RowIndexer(file, layout, rules, classes, checked).index(piece);
}

}  // namespace trireme::detail
