#include <algorithm>
#include <limits>

#include "data/batch_layout.h"
#include "data/csv_cells.h"
#include "data/csv_header.h"
#include "data/csv_like.h"
#include "data/csv_number_names.h"
#include "data/csv_rows.h"
#include "data/file_identity.h"
#include "data/gzip.h"
#include "data/text_lines.h"

namespace trireme {
namespace {

using detail::concat;
using detail::CsvCells;
using detail::CsvColumn;
using detail::CsvLayout;
using detail::CsvRows;
using detail::CsvRules;
using detail::shown;
using detail::throw_text_error;
using Kind = CsvColumn::Kind;

CsvRules rules_of(const CsvOptions& options) {
  return {options.regression,
          options.missing,
          options.unseen,
          detail::MissingValues(options.missing_values),
          options.rounded,
          options.missing_values};
}

class CsvDataset final : public Dataset {
 public:
  // `training`: what the file has to be like; null: it is the training file.
  CsvDataset(const std::string& path,
             const CsvOptions& options,
             const Preprocessing* training,
             const NewDataOptions& like)
      : identity_(identity_of(path, options, training)),
        file_(detail::plain_file(path)),
        rules_(rules_of(options)),
        options_(options) {
    const char* from = detail::text_begin(file_);
    layout_ = training == nullptr ? detail::find_csv_layout(file_, options, from)
                                  : detail::find_csv_layout(file_, *training, like, from);
    const char* const rows = from;
    rows_ = detail::index_csv(
        file_, layout_, rules_, known_classes(training), options.check, known_good(path), from);
    if (rows_.offsets.empty()) {
      throw_text_error(file_,
                       rows,
                       rows_.dropped.empty()
                           ? "expected rows after the header, found none"
                           : concat("expected a row in which nothing is missing, found none among ",
                                    rows_.dropped.size()));
    }
    layout_.number_features();
    if (options.header == CsvOptions::Header::kAutomatic && layout_.names.empty()) {
      check_first_line(training == nullptr, known_good(path));
    }
    shape_.dense = {layout_.features};
    shape_.classes = options.regression ? 0 : rows_.classes->size();
    file_.advise_random_reads();
    if (detail::changed_just_now(path)) {
      identity_.clear();
    }
    options_.check = {};  // the exchange may not live as long as this
  }

  std::int64_t size() const override { return static_cast<std::int64_t>(rows_.offsets.size()); }
  const SampleShape& shape() const override { return shape_; }

  std::int64_t label(std::int64_t sample) const override {
    TRIREME_CHECK(shape_.classes > 0, "the samples have numbers to predict, not classes");
    detail::check_sample(sample, size());
    return label_of(static_cast<std::size_t>(sample));
  }

  std::vector<std::string> class_names() const override {
    return rows_.classes == nullptr ? std::vector<std::string>() : rows_.classes->words();
  }

  Preprocessing preprocessing() const override {
    Preprocessing all;
    all.format = "csv";
    all.shape = shape_;
    all.classes = class_names();
    all.separator = options_.separator;
    for (std::size_t i = 0; i < layout_.columns.size(); ++i) {
      const CsvColumn& column = layout_.columns[i];
      TableColumn& written = all.columns.emplace_back();
      written.name = layout_.names.empty() ? "" : layout_.names[i];
      written.categorical = column.kind == Kind::kCategory;
      if (written.categorical) {
        written.categories = column.categories->words();
      }
    }
    all.target = layout_.target;
    all.missing = options_.missing;
    all.missing_values = options_.missing_values;
    all.unseen = options_.unseen;
    if (!identity_.empty()) {
      all.checked.push_back(identity_);
    }
    return all;
  }

  void read(std::span<const std::int64_t> samples, Batch& batch) const override {
    detail::lay_out(batch, shape_, samples, size());
    for (std::size_t row = 0; row < samples.size(); ++row) {
      const auto sample = static_cast<std::size_t>(samples[row]);
      float* target = nullptr;
      if (shape_.classes > 0) {
        batch.labels[row] = label_of(sample);
      } else {
        target = &batch.targets[row];
        *target = 0;  // where the file has none
      }
      const auto line = detail::line_at(file_, file_.begin() + rows_.offsets[sample]);
      try {
        read_line(
            line, batch.dense.data() + static_cast<std::int64_t>(row) * layout_.features, target);
      } catch (const detail::BadQuotes& bad) {
        throw_text_error(file_, bad.place, bad.message);
      }
    }
  }

  bool has_targets() const { return layout_.target >= 0; }
  const std::vector<std::int64_t>& dropped() const { return rows_.dropped; }
  const std::vector<std::string>& notes() const { return layout_.notes; }

 private:
  static std::shared_ptr<const detail::ClassNames> known_classes(const Preprocessing* training) {
    return training == nullptr || training->shape.classes == 0
               ? nullptr
               : std::make_shared<const detail::ClassNames>(training->classes);
  }

  // The file, and all that decides whether its cells are good; empty where that is not known.
  static std::string identity_of(const std::string& path,
                                 const CsvOptions& options,
                                 const Preprocessing* training) {
    std::string text = detail::file_identity(path);
    if (text.empty() || (training != nullptr && training->checked.empty())) {
      return {};
    }
    text += concat(" read with header {} separator {} target {}{} missing {} unseen {}",
                   {static_cast<int>(options.header),
                    static_cast<int>(options.separator),
                    shown(options.target),
                    options.regression ? " regression" : "",
                    static_cast<int>(options.missing),
                    static_cast<int>(options.unseen)});
    for (const auto* words : {&options.categorical, &options.missing_values}) {
      text += " words";
      for (const std::string& word : *words) {
        text += " " + shown(word);
      }
    }
    return training == nullptr ? text : concat(text, " like ", training->checked[0]);
  }

  // A file that was found good, and has not changed since, is not looked at again.
  bool known_good(const std::string& path) const {
    const std::vector<std::string>& known = options_.check.known;
    return !identity_.empty() && !detail::changed_just_now(path) &&
           std::find(known.begin(), known.end(), identity_) != known.end();
  }

  std::int64_t label_of(std::size_t sample) const {
    return rows_.labels.empty() ? 0 : rows_.labels[sample];
  }

  void read_line(std::string_view line, float* out, float* target) const {
    CsvCells cells(line, layout_.separator);
    std::int64_t number = 0;
    for (; cells.next() && number < layout_.size(); ++number) {
      const CsvColumn& column = layout_.column(number);
      switch (column.kind) {
        case Kind::kValue:
          out[column.feature] = value_of(cells, column);
          break;
        case Kind::kCategory:
          set_category(cells, column, out + column.feature);
          break;
        case Kind::kTarget:
          if (target != nullptr) {
            *target = number_in(cells, column);
          }
          break;
        case Kind::kIgnored:
          break;
      }
    }
    // Counted when the file was opened: it has changed since.
    if (number != layout_.size()) {
      throw_text_error(
          file_,
          line.data(),
          concat("expected ", layout_.size(), " cells, as in the first line, found ", number));
    }
  }

  float value_of(const CsvCells& cells, const CsvColumn& column) const {
    const bool may_miss =
        rules_.missing == CsvOptions::Missing::kNan || rules_.missing == CsvOptions::Missing::kZero;
    if (may_miss && rules_.missing_values.contain_in_numbers(cells.text())) {
      return rules_.missing == CsvOptions::Missing::kZero ? 0
                                                          : std::numeric_limits<float>::quiet_NaN();
    }
    return number_in(cells, column);
  }

  // One of its features is 1, or none where the category is missing or was never seen.
  void set_category(const CsvCells& cells, const CsvColumn& column, float* out) const {
    std::fill_n(out, column.categories->size(), 0.0F);
    if (rules_.missing_values.contain(cells.text())) {
      return;
    }
    if (const auto known = column.categories->class_of(cells.text())) {
      out[*known] = 1;
    }
  }

  float number_in(const CsvCells& cells, const CsvColumn& column) const {
    const auto value = detail::csv_number(cells.text());
    if (!value) {
      throw_text_error(
          file_,
          cells.place(),
          concat("expected a finite number in {}, found {}",
                 {column.title, cells.text().empty() ? "an empty cell" : shown(cells.text())}));
    }
    return *value;
  }

  // It was taken for a sample; where it may have names, whoever knows has to say so. What was told
  // before, and not refused, is not asked again.
  void check_first_line(bool may_have_new_class, bool told_before) const {
    const char* const begin = detail::text_begin(file_);
    if (may_have_new_class && detail::may_be_names(rows_.labels)) {
      refuse_unclear_header(begin,
                            "its class occurs nowhere else in the file, and every other one does");
    }
    const bool own_class =
        !rows_.labels.empty() && std::ranges::count(rows_.labels, rows_.labels.front()) == 1;
    const std::string why =
        told_before
            ? ""
            : detail::why_may_be_names(
                  file_, layout_, rules_.missing_values, rules_.regression, own_class, begin);
    if (!why.empty()) {
      refuse_unclear_header(begin, why);
    }
  }

  [[noreturn]] void refuse_unclear_header(const char* begin, const std::string& why) const {
    const char* from = begin;
    throw_text_error(file_,
                     begin,
                     concat("expected names of columns or a sample in the first line, found {}, "
                            "which may be either: {}; say which with --header yes or --header no",
                            {shown(detail::next_line(file_, from).value_or("")), why}));
  }

  std::string identity_;  // before it is read: what changes it later makes it another
  detail::MappedFile file_;
  CsvRules rules_;
  CsvOptions options_;
  CsvLayout layout_;
  SampleShape shape_{};
  CsvRows rows_;
};

void check(const CsvOptions& options) {
  TRIREME_CHECK(options.separator != '"' && options.separator != '\n' && options.separator != '\r',
                "a quote or a line break cannot separate cells");
  const SharedCheck& check = options.check;
  TRIREME_CHECK(check.parts >= 1 && check.part >= 0 && check.part < check.parts &&
                    (check.parts == 1 || check.exchange),
                "a file is checked in parts that are numbered from 0, with an exchange between "
                "them, found part {} of {}",
                {check.part, check.parts});
}

}  // namespace

std::shared_ptr<Dataset> open_csv(const std::string& file, const CsvOptions& options) {
  check(options);
  return std::make_shared<CsvDataset>(file, options, nullptr, NewDataOptions());
}

NewData detail::open_csv_like(const Preprocessing& training,
                              const std::string& file,
                              const NewDataOptions& like,
                              const SharedCheck& shared) {
  CsvOptions options;
  options.separator = training.separator;
  options.header = like.header;
  options.regression = training.shape.classes == 0;
  options.missing = training.missing;
  options.missing_values = training.missing_values;
  options.unseen = training.unseen;
  options.check = shared;
  check(options);
  const auto data = std::make_shared<CsvDataset>(file, options, &training, like);
  return {data, data->has_targets(), data->dropped(), data->notes()};
}

}  // namespace trireme
