#include "data/csv_layout.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "data/csv_cells.h"
#include "data/csv_header.h"
#include "data/gzip.h"
#include "data/missing_values.h"
#include "data/text_lines.h"
#include "trireme/core/counted.h"
#include "trireme/core/error.h"
#include "trireme/core/nearest_word.h"

namespace trireme::detail {
namespace {

using Kind = CsvColumn::Kind;
using Header = CsvOptions::Header;
using Targets = NewDataOptions::Targets;

char separator_for(const std::string& path, char given) {
  const bool tabs = without_gz(path).ends_with(".tsv");
  return given != 0 ? given : tabs ? '\t' : ',';
}

std::vector<std::string> first_line(const MappedFile& file, char separator, const char*& from) {
  const char* const begin = from;
  const auto line = next_line(file, from);
  if (!line) {
    throw_text_error(file, begin, "expected lines of cells, found only blanks");
  }
  const std::size_t bare = line->find('\r');
  if (from == file.end() && bare != std::string_view::npos) {
    throw_text_error(
        file,
        line->data() + bare,
        "expected lines that end with \\n or \\r\\n, found a file with \\r alone, as old "
        "Macintosh programs write it: convert it (tr '\\r' '\\n' < OLD > NEW)");
  }
  if (const auto zero = line->find('\0'); zero != std::string_view::npos) {
    throw_text_error(file, line->data() + zero, zero_byte_problem());
  }
  std::vector<std::string> words;
  try {
    for (CsvCells cells(*line, separator); cells.next();) {
      words.emplace_back(cells.text());
    }
  } catch (const BadQuotes& bad) {
    throw_text_error(file, bad.place, bad.message);
  }
  return words;
}

// A column by its number; -1 where `text` is no number, `columns` where there is no such column.
std::int64_t numbered(const std::string& text, std::int64_t columns) {
  const auto number = parse_number(text);
  if (!number) {
    return -1;
  }
  const bool there =
      *number >= 0 && *number < static_cast<double>(columns) && *number == std::floor(*number);
  return there ? static_cast<std::int64_t>(*number) : columns;
}

// The columns that there are: by number, and by name where they have one.
std::string existing_columns(const CsvLayout& layout) {
  constexpr std::size_t kMost = 40;
  std::string text = concat("numbers 0 to ", layout.size() - 1);
  for (std::size_t i = 0; i < std::min(kMost, layout.names.size()); ++i) {
    text += (i == 0 ? ", or " : ", ") + shown(layout.names[i]);
  }
  return text + (layout.names.size() > kMost ? ", ..." : "");
}

// Whether the columns of a list were joined by something else than a comma.
std::string joined_otherwise(const std::string& wanted, const CsvLayout& layout) {
  std::string names = wanted;
  std::ranges::replace_if(
      names, [](char c) { return c == ';' || c == '|' || is_blank(c); }, ',');
  std::istringstream words(names);
  for (std::string word; std::getline(words, word, ',');) {
    if (!word.empty() && std::ranges::find(layout.names, word) == layout.names.end()) {
      return "";
    }
  }
  return names == wanted ? "" : concat("; did you mean a comma, as in ", names, "?");
}

// `setting` is what asks for the column: that, and not the file, is what has to change.
std::int64_t find_column(const MappedFile& file,
                         const CsvLayout& layout,
                         const std::string& wanted,
                         const char* setting) {
  const auto named = std::ranges::find(layout.names, wanted);
  if (named != layout.names.end()) {
    const auto times = std::count(named, layout.names.end(), wanted);
    TRIREME_CHECK(times == 1,
                  "{}: expected one column of \"{}\" that is called {}, found {}: ask for it by "
                  "its number, counting from 0",
                  {setting, file.path(), shown(wanted), times});
    return named - layout.names.begin();
  }
  const auto number = numbered(wanted, layout.size());
  const std::string near = nearest_word(wanted, layout.names);
  TRIREME_CHECK(number >= 0 && number < layout.size(),
                "{}: expected a column of \"{}\" ({}), found {}{}",
                {setting,
                 file.path(),
                 existing_columns(layout),
                 shown(wanted),
                 near.empty() ? joined_otherwise(wanted, layout)
                              : concat("; did you mean ", shown(near), "?")});
  return number;
}

[[noreturn]] void refuse_words_only(const MappedFile& file) {
  throw_text_error(file,
                   text_begin(file),
                   "expected names of columns or a sample in the first line, found one that may be "
                   "either, since all columns are categorical; say which with --header yes or "
                   "--header no");
}

bool begins_with_names(const MappedFile& file,
                       const std::vector<std::string>& words,
                       const CsvOptions& options) {
  if (options.header != Header::kAutomatic) {
    return options.header == Header::kYes;
  }
  const auto columns = static_cast<std::int64_t>(words.size());
  const std::int64_t target =
      options.target.empty() ? columns - 1 : numbered(options.target, columns);
  std::vector<std::int64_t> categorical;
  for (const std::string& wanted : options.categorical) {
    categorical.push_back(numbered(wanted, columns));
    if (categorical.back() < 0) {
      return true;  // by name
    }
  }
  const auto told = columns - static_cast<std::int64_t>(categorical.size());
  if (target >= 0 && !categorical.empty() && told <= (options.regression ? 0 : 1)) {
    refuse_words_only(file);
  }
  return looks_like_names(
      words, target, options.regression, MissingValues(options.missing_values), categorical);
}

// As some programs write it. The last column, which is the target unless another is named, then has
// nothing in it, which is better said once than of each row.
void refuse_empty_end(const MappedFile& file, char separator, const char* from) {
  const char* const begin = from;
  while (auto line = next_line(file, from)) {
    while (!line->empty() && is_blank(line->back()) && line->back() != separator) {
      line->remove_suffix(1);
    }
    if (!line->ends_with(separator)) {
      return;
    }
  }
  throw_text_error(file,
                   begin,
                   concat("every line ends with a '{}', so that the last column (the target) is "
                          "empty: take it out of each line, or name the target (--target)",
                          {separator}));
}

void set_titles(CsvLayout& layout) {
  for (std::size_t i = 0; i < layout.columns.size(); ++i) {
    layout.columns[i].title = layout.names.empty() ? concat("column number ", i, " (from 0)")
                                                   : concat("column ", shown(layout.names[i]));
  }
}

}  // namespace

void CsvLayout::number_features() {
  features = 0;
  for (CsvColumn& column : columns) {
    column.feature = features;
    features += column.kind == Kind::kValue      ? 1
                : column.kind == Kind::kCategory ? column.categories->size()
                                                 : 0;
  }
}

CsvLayout find_csv_layout(const MappedFile& file, const CsvOptions& options, const char*& from) {
  CsvLayout layout;
  layout.separator = separator_for(file.path(), options.separator);
  const char* const begin = from;
  layout.names = first_line(file, layout.separator, from);
  if (layout.names.size() < 2) {
    const char* again = begin;
    const std::string_view line = next_line(file, again).value_or("");
    throw_text_error(file,
                     line.data(),
                     concat("expected at least two cells with '{}' between them (values and a "
                            "target), found {}: is the separator another one (--separator)?",
                            {layout.separator, shown(line)}));
  }
  layout.columns.resize(layout.names.size());
  if (!begins_with_names(file, layout.names, options)) {
    layout.names.clear();
    from = begin;
  }
  set_titles(layout);
  if (options.target.empty()) {
    refuse_empty_end(file, layout.separator, begin);
  }
  layout.target = options.target.empty() ? layout.size() - 1
                                         : find_column(file, layout, options.target, "target");
  layout.columns[static_cast<std::size_t>(layout.target)].kind = Kind::kTarget;
  for (const std::string& wanted : options.categorical) {
    CsvColumn& column =
        layout.columns[static_cast<std::size_t>(find_column(file, layout, wanted, "categorical"))];
    TRIREME_CHECK(column.kind != Kind::kCategory,
                  "categorical: expected each column of \"{}\" once, found {} twice",
                  {file.path(), column.title});
    TRIREME_CHECK(column.kind != Kind::kTarget,
                  "categorical: expected columns of values, found ",
                  column.title,
                  ", the target: classes may be words without being named here");
    column.kind = Kind::kCategory;
  }
  return layout;
}

// --- of a file that has to be like another
namespace {

std::vector<std::string> names_of(const Preprocessing& training, bool with_target) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < training.columns.size(); ++i) {
    if (with_target || static_cast<std::int64_t>(i) != training.target) {
      names.push_back(training.columns[i].name);
    }
  }
  return names;
}

bool has_names(const Preprocessing& training) {
  return std::ranges::any_of(training.columns,
                             [](const TableColumn& each) { return !each.name.empty(); });
}

// Whether words are names of columns, each at most as often as there, in any order: names may be
// numbers, which look like values.
bool are_known_names(std::vector<std::string> words, std::vector<std::string> names) {
  std::ranges::sort(words);
  std::ranges::sort(names);
  return std::includes(names.begin(), names.end(), words.begin(), words.end());
}

// Whether the first line has names; `with_target`: the file has a cell for the target.
bool begins_with_names(const MappedFile& file,
                       const std::vector<std::string>& words,
                       const Preprocessing& training,
                       const NewDataOptions& options,
                       bool with_target) {
  if (options.header != Header::kAutomatic) {
    return options.header == Header::kYes;
  }
  if (has_names(training) && are_known_names(words, names_of(training, true))) {
    return true;
  }
  const bool regression = training.shape.classes == 0;
  const auto columns = static_cast<std::int64_t>(words.size());
  const std::int64_t target = with_target ? training.target : columns;
  std::vector<std::int64_t> categorical;
  for (std::size_t i = 0; i < training.columns.size(); ++i) {
    const auto column = static_cast<std::int64_t>(i);
    if (training.columns[i].categorical) {
      categorical.push_back(column - (!with_target && column > training.target ? 1 : 0));
    }
  }
  const auto told = columns - static_cast<std::int64_t>(categorical.size()) -
                    (with_target && !regression ? 1 : 0);
  if (!categorical.empty() && told <= 0) {
    refuse_words_only(file);
  }
  return looks_like_names(
      words, target, regression, MissingValues(training.missing_values), categorical);
}

// Those of the training file that a file with names does not have: "; "city" and "age" are
// missing". Empty where it has no names, or has them all.
std::string missing_columns(const std::vector<std::string>& found,
                            const Preprocessing& training,
                            const NewDataOptions& options) {
  std::vector<std::string> missing;
  for (const std::string& name : names_of(training, options.targets == Targets::kYes)) {
    if (std::ranges::find(found, name) == found.end()) {
      missing.push_back(shown(name));
    }
  }
  const bool named = options.header != Header::kNo && has_names(training) &&
                     std::ranges::any_of(found, [&](const std::string& word) {
                       return are_known_names({word}, names_of(training, true));
                     });
  return missing.empty() || !named
             ? ""
             : concat("; ", enumerated(missing), missing.size() == 1 ? " is" : " are", " missing");
}

void refuse_columns(const MappedFile& file,
                    const Preprocessing& training,
                    const NewDataOptions& options,
                    char separator,
                    const std::vector<std::string>& words) {
  const std::size_t found = words.size();
  throw_text_error(file,
                   text_begin(file),
                   concat("expected the {} columns of the training file, found {}{}{}",
                          {training.columns.size(),
                           found,
                           missing_columns(words, training, options),
                           found == 1 ? concat(": is there a '",
                                               separator,
                                               "' between the cells, as in the training file?")
                                      : ""}));
}

void compare_names(const MappedFile& file,
                   const std::vector<std::string>& found,
                   const Preprocessing& training,
                   bool with_target) {
  const std::vector<std::string> wanted = names_of(training, with_target);
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (found[i] == wanted[i]) {
      continue;
    }
    const bool elsewhere = std::ranges::find(found, wanted[i]) != found.end();
    const bool may_be_sample =
        std::ranges::any_of(found, [](const auto& word) { return parse_number(word).has_value(); });
    throw_text_error(
        file,
        text_begin(file),
        concat("expected the columns of the training file in their order, found columns with other "
               "names: expected {} as column number {} (from 0), found {}{}{}",
               {shown(wanted[i]),
                i,
                shown(found[i]),
                elsewhere     ? concat(", and ", shown(wanted[i]), " in another place")
                : with_target ? std::string()
                              : std::string("; only the target may be missing"),
                may_be_sample ? "; if this line is a sample and holds no names, say so: --header no"
                              : ""}));
  }
}

}  // namespace

CsvLayout find_csv_layout(const MappedFile& file,
                          const Preprocessing& training,
                          const NewDataOptions& options,
                          const char*& from) {
  CsvLayout layout;
  layout.separator = separator_for(file.path(), training.separator);
  const char* const begin = from;
  layout.names = first_line(file, layout.separator, from);
  const std::size_t found = layout.names.size();
  const std::size_t all = training.columns.size();
  const bool with_target = found == all;
  if (!with_target && (found + 1 != all || options.targets == Targets::kYes)) {
    refuse_columns(file, training, options, layout.separator, layout.names);
  }
  if (!begins_with_names(file, layout.names, training, options, with_target)) {
    layout.names.clear();
    from = begin;
  } else if (has_names(training)) {
    compare_names(file, layout.names, training, with_target);
  }
  for (std::size_t i = 0; i < all; ++i) {
    const TableColumn& like = training.columns[i];
    CsvColumn column;
    if (static_cast<std::int64_t>(i) == training.target) {
      if (!with_target) {
        layout.notes.push_back(
            concat("{} has one column fewer than the training file{}the target{}",
                   {file.path(),
                    layout.names.empty() ? ", and no names of columns: taken for one without "
                                         : ": without ",
                    like.name.empty() ? "" : " " + shown(like.name)}));
        continue;
      }
      const bool known = options.targets != Targets::kNo;
      column.kind = known ? Kind::kTarget : Kind::kIgnored;
      layout.target = known ? layout.size() : -1;
    } else if (like.categorical) {
      column.kind = Kind::kCategory;
      column.categories = std::make_shared<ClassNames>(like.categories);
    }
    layout.columns.push_back(std::move(column));
  }
  set_titles(layout);
  return layout;
}

}  // namespace trireme::detail
