#include <limits>

#include "data/batch_layout.h"
#include "data/class_names.h"
#include "data/csv_cells.h"
#include "data/csv_header.h"
#include "data/evaluation.h"
#include "data/gzip.h"
#include "data/text_lines.h"
#include "trireme/data/readers.h"

namespace trireme {
namespace {

using detail::concat;
using detail::CsvCells;
using detail::shown;
using detail::throw_text_error;

// More different words than this are no classes but numbers, or names.
constexpr std::int64_t kMostClasses = 1 << 20;

char separator_for(const std::string& path, const CsvOptions& options) {
  const bool tabs = detail::without_gz(path).ends_with(".tsv");
  return options.separator != 0 ? options.separator : tabs ? '\t' : ',';
}

class CsvDataset final : public Dataset {
 public:
  CsvDataset(const std::string& path, const CsvOptions& options, const CsvDataset* train)
      : file_(detail::plain_file(path)), separator_(separator_for(path, options)) {
    const char* from = detail::text_begin(file_);
    read_first_line(options, from);
    target_ = find_target(options);
    if (train != nullptr) {
      compare_columns(*train);
      names_ = train->names_;
    }
    index(options.regression, from);
    if (options.header == CsvOptions::Header::kAutomatic && names_of_columns_.empty() &&
        train == nullptr && detail::may_be_names(labels_)) {
      refuse_unclear_header();
    }
    shape_.dense = {columns_ - 1};
    shape_.classes = options.regression ? 0 : names_->size();
    file_.advise_random_reads();
  }

  std::int64_t size() const override { return static_cast<std::int64_t>(offsets_.size()); }
  const SampleShape& shape() const override { return shape_; }

  std::int64_t label(std::int64_t sample) const override {
    TRIREME_CHECK(shape_.classes > 0, "the samples have numbers to predict, not classes");
    detail::check_sample(sample, size());
    return labels_[static_cast<std::size_t>(sample)];
  }

  std::vector<std::string> class_names() const override {
    return names_ == nullptr ? std::vector<std::string>() : names_->words();
  }

  void read(std::span<const std::int64_t> samples, Batch& batch) const override {
    detail::lay_out(batch, shape_, samples, size());
    for (std::size_t row = 0; row < samples.size(); ++row) {
      const auto sample = static_cast<std::size_t>(samples[row]);
      if (shape_.classes > 0) {
        batch.labels[row] = labels_[sample];
      }
      float* target = shape_.classes > 0 ? nullptr : &batch.targets[row];
      read_line(detail::line_at(file_, file_.begin() + offsets_[sample]),
                batch.dense.data() + static_cast<std::int64_t>(row) * (columns_ - 1),
                target);
    }
  }

 private:
  // Decides about the header and counts the columns; `from` becomes the start of the rows.
  void read_first_line(const CsvOptions& options, const char*& from) {
    const char* const begin = from;
    const auto line = detail::next_line(file_, from);
    if (!line) {
      throw_text_error(file_, begin, "expected lines of cells, found only blanks");
    }
    CsvCells cells(file_, *line, separator_);
    while (cells.next()) {
      names_of_columns_.emplace_back(cells.text());
    }
    columns_ = static_cast<std::int64_t>(names_of_columns_.size());
    if (columns_ < 2) {
      throw_text_error(file_,
                       line->data(),
                       concat("expected at least two cells with '",
                              separator_,
                              "' between them (values and a target), found ",
                              shown(*line),
                              ": is the separator another one (--separator)?"));
    }
    const bool header = options.header == CsvOptions::Header::kAutomatic
                            ? detail::looks_like_names(
                                  names_of_columns_, numbered_target(options), options.regression)
                            : options.header == CsvOptions::Header::kYes;
    if (!header) {
      names_of_columns_.clear();
      from = begin;
    }
  }

  // The target's column by its number, which may be one that the file does not have; -1 where it is
  // asked for by a name.
  std::int64_t numbered_target(const CsvOptions& options) const {
    if (options.target.empty()) {
      return columns_ - 1;
    }
    const auto number = detail::parse_number(options.target);
    if (!number) {
      return -1;
    }
    const bool there =
        *number >= 0 && *number < static_cast<double>(columns_) && *number == std::floor(*number);
    return there ? static_cast<std::int64_t>(*number) : columns_;
  }

  std::int64_t find_target(const CsvOptions& options) const {
    const std::string& target = options.target;
    for (std::size_t column = 0; column < names_of_columns_.size(); ++column) {
      if (!target.empty() && names_of_columns_[column] == target) {
        return static_cast<std::int64_t>(column);
      }
    }
    if (const std::int64_t number = numbered_target(options); number >= 0 && number < columns_) {
      return number;
    }
    std::string existing = concat("numbers 0 to ", columns_ - 1);
    for (std::size_t i = 0; i < names_of_columns_.size(); ++i) {
      existing += (i == 0 ? ", or " : ", ") + shown(names_of_columns_[i]);
    }
    throw_text_error(file_,
                     detail::text_begin(file_),
                     concat("expected a target column ", shown(target), ", found ", existing));
  }

  void compare_columns(const CsvDataset& train) const {
    if (columns_ != train.columns_ || target_ != train.target_ ||
        (!names_of_columns_.empty() && !train.names_of_columns_.empty() &&
         names_of_columns_ != train.names_of_columns_)) {
      throw_text_error(file_,
                       detail::text_begin(file_),
                       concat("expected the ",
                              train.columns_,
                              " columns of ",
                              train.file_.path(),
                              ", found ",
                              columns_,
                              columns_ == train.columns_ ? " with other names" : ""));
    }
  }

  // One pass over the rows: where each begins, its class, and that it has all its cells.
  void index(bool regression, const char* from) {
    file_.advise_one_pass();
    const bool find_names = !regression && names_ == nullptr;
    auto names = std::make_shared<detail::ClassNames>();
    const char* const rows = from;
    while (const auto line = detail::next_line(file_, from)) {
      offsets_.push_back(file_.offset_of(line->data()));
      const std::int64_t found = detail::count_csv_cells(file_, *line, separator_);
      if (found != columns_) {
        refuse_length(*line, found);
      }
      if (!regression) {
        const CsvCells cells = target_cell(*line);
        labels_.push_back(find_names ? new_class(*names, cells) : known_class(cells));
      }
    }
    if (offsets_.empty()) {
      throw_text_error(file_, rows, "expected rows after the header, found none");
    }
    if (find_names) {
      const std::vector<std::int32_t> classes = names->classes_in_order();
      for (std::int32_t& label : labels_) {
        label = classes[static_cast<std::size_t>(label)];
      }
      names_ = std::move(names);
    }
  }

  // Of a line that has all its cells.
  CsvCells target_cell(std::string_view line) const {
    // The last column is the usual one: where no quote is in it, what follows the last separator.
    const std::string_view end = line.substr(line.rfind(separator_) + 1);
    const bool last = target_ == columns_ - 1 && end.find('"') == std::string_view::npos;
    CsvCells cells(file_, last ? end : line, separator_);
    for (std::int64_t column = last ? target_ : 0; column <= target_; ++column) {
      cells.next();
    }
    return cells;
  }

  std::int32_t new_class(detail::ClassNames& names, const CsvCells& cells) const {
    if (cells.text().empty()) {
      refuse_empty(cells);
    }
    const std::int32_t number = names.add(cells.text());
    if (names.size() > kMostClasses) {
      throw_text_error(file_,
                       cells.place(),
                       concat("expected at most ",
                              kMostClasses,
                              " classes in ",
                              column_name(target_),
                              ", found more: if it is a number to predict, ask for regression"));
    }
    return number;
  }

  std::int32_t known_class(const CsvCells& cells) const {
    if (cells.text().empty()) {
      refuse_empty(cells);
    }
    const auto known = names_->class_of(cells.text());
    if (!known) {
      throw_text_error(file_,
                       cells.place(),
                       concat("expected a class of the training file (",
                              names_->list(),
                              "), found ",
                              shown(cells.text())));
    }
    return *known;
  }

  void read_line(std::string_view line, float* out, float* target) const {
    CsvCells cells(file_, line, separator_);
    std::int64_t column = 0;
    for (; cells.next() && column < columns_; ++column) {
      if (column != target_) {
        *out++ = number_in(cells, column);
      } else if (target != nullptr) {
        *target = number_in(cells, column);
      }
    }
    // Counted when the file was opened: it has changed since.
    if (column != columns_) {
      refuse_length(line, column);
    }
  }

  float number_in(const CsvCells& cells, std::int64_t column) const {
    const auto value = detail::parse_number(cells.text());
    if (!value || std::abs(*value) > std::numeric_limits<float>::max()) {
      throw_text_error(file_,
                       cells.place(),
                       concat("expected a finite number in ",
                              column_name(column),
                              ", found ",
                              cells.text().empty() ? "an empty cell" : shown(cells.text())));
    }
    return static_cast<float>(*value);
  }

  [[noreturn]] void refuse_unclear_header() const {
    const char* const begin = detail::text_begin(file_);
    const char* from = begin;
    throw_text_error(
        file_,
        begin,
        concat("expected names of columns or a sample in the first line, found ",
               shown(detail::next_line(file_, from).value_or("")),
               ", which may be either: its class occurs nowhere else in the file, and every other "
               "one does; say which with --header yes or --header no"));
  }

  [[noreturn]] void refuse_empty(const CsvCells& cells) const {
    throw_text_error(
        file_, cells.place(), concat("expected a class in ", column_name(target_), ", found none"));
  }

  [[noreturn]] void refuse_length(std::string_view line, std::int64_t found) const {
    throw_text_error(file_,
                     line.data(),
                     concat("expected ", columns_, " cells, as in the first line, found ", found));
  }

  std::string column_name(std::int64_t column) const {
    return names_of_columns_.empty()
               ? concat("column number ", column, " (from 0)")
               : concat("column ", shown(names_of_columns_[static_cast<std::size_t>(column)]));
  }

  detail::MappedFile file_;
  char separator_;
  std::vector<std::string> names_of_columns_;  // empty without a header
  std::int64_t columns_ = 0;
  std::int64_t target_ = 0;
  SampleShape shape_{};
  std::vector<std::int64_t> offsets_;  // of lines
  std::vector<std::int32_t> labels_;
  std::shared_ptr<const detail::ClassNames> names_;
};

void check(const CsvOptions& options) {
  TRIREME_CHECK(options.separator != '"' && options.separator != '\n' && options.separator != '\r',
                "a quote or a line break cannot separate cells");
}

}  // namespace

std::shared_ptr<Dataset> open_csv(const std::string& file, const CsvOptions& options) {
  check(options);
  return std::make_shared<CsvDataset>(file, options, nullptr);
}

std::shared_ptr<Dataset> detail::open_csv_like(const Dataset& train,
                                               const std::string& file,
                                               const CsvOptions& options) {
  check(options);
  return std::make_shared<CsvDataset>(file, options, &dynamic_cast<const CsvDataset&>(train));
}

}  // namespace trireme
