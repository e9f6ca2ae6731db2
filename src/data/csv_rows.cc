#include "data/csv_rows.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <thread>
#include <utility>

#include "data/text_lines.h"
#include "trireme/core/log.h"
#include "trireme/core/machine.h"

namespace trireme::detail {
namespace {

using Kind = CsvColumn::Kind;

// A thread for less costs more than it saves.
constexpr std::int64_t kSmallestPiece = 1 << 20;

// The start of the first line at or after `place`.
const char* line_after(const MappedFile& file, const char* rows, const char* place) {
  if (place <= rows) {
    return rows;
  }
  const char* const newline = std::find(place - 1, file.end(), '\n');
  return newline == file.end() ? file.end() : newline + 1;
}

std::vector<CsvPiece> pieces_of(const MappedFile& file, const char* from, int threads) {
  const std::int64_t bytes = file.end() - from;
  const std::int64_t available =
      threads > 0 ? threads : static_cast<std::int64_t>(allowed_cpus().size());
  const std::int64_t count =
      std::clamp<std::int64_t>(bytes / kSmallestPiece, 1, std::max<std::int64_t>(1, available));
  std::vector<CsvPiece> pieces(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    CsvPiece& piece = pieces[static_cast<std::size_t>(i)];
    piece.begin = line_after(file, from, from + bytes * i / count);
    piece.end = line_after(file, from, from + bytes * (i + 1) / count);
  }
  pieces.back().end = file.end();
  return pieces;
}

// `index` for each, by a thread of its own.
void index_all(std::vector<CsvPiece>& pieces, const std::function<void(CsvPiece& piece)>& index) {
  std::vector<std::exception_ptr> failures(pieces.size());
  const auto run = [&](std::size_t i) {
    try {
      index(pieces[i]);
    } catch (...) {
      failures[i] = std::current_exception();
    }
  };
  std::vector<std::thread> threads;
  for (std::size_t i = 1; i < pieces.size(); ++i) {
    threads.emplace_back(run, i);
  }
  run(0);
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const std::exception_ptr& failure : failures) {
    if (failure) {
      std::rethrow_exception(failure);
    }
  }
}

// All pieces' names together, and the class of each piece's each number.
std::vector<std::vector<std::int32_t>> joined(const std::vector<const ClassNames*>& pieces,
                                              ClassNames& all) {
  std::vector<std::vector<std::int32_t>> numbers;
  for (const ClassNames* piece : pieces) {
    numbers.emplace_back();
    for (const std::string& word : piece->words()) {
      numbers.back().push_back(all.add(word));
    }
  }
  const std::vector<std::int32_t> classes = all.classes_in_order();
  for (std::vector<std::int32_t>& piece : numbers) {
    for (std::int32_t& number : piece) {
      number = classes[static_cast<std::size_t>(number)];
    }
  }
  return numbers;
}

void report(const MappedFile& file, const std::vector<CsvPiece>& pieces, const SharedCheck& check) {
  DataFaults mine;
  for (const CsvPiece& piece : pieces) {
    mine.append(piece.faults);
  }
  DataFaults all;
  if (check.parts > 1) {
    for (const std::string& text : check.exchange(mine.empty() ? "" : mine.text())) {
      all.append(DataFaults::of_text(text));
    }
  } else {
    all = std::move(mine);
  }
  if (!all.empty()) {
    all.throw_error(file);
  }
}

void warn_of_rounding(const MappedFile& file,
                      const CsvLayout& layout,
                      const std::vector<CsvPiece>& pieces,
                      int parts) {
  for (std::size_t column = 0; column < layout.columns.size(); ++column) {
    for (const auto rounding : {&CsvPiece::rounding, &CsvPiece::further_rounding}) {
      if ((pieces[0].*rounding).empty()) {
        continue;
      }
      CsvRounding all = (pieces[0].*rounding)[column];
      for (std::size_t i = 1; i < pieces.size(); ++i) {
        all.append((pieces[i].*rounding)[column]);
      }
      if (all.loses()) {
        log(LogLevel::kWarning, all.warning(file, layout.columns[column], parts));
        break;  // what samples have lost is not there to be rounded further
      }
    }
  }
}

}  // namespace

CsvRows index_csv(const MappedFile& file,
                  CsvLayout& layout,
                  const CsvRules& rules,
                  std::shared_ptr<const ClassNames> classes,
                  const SharedCheck& check,
                  bool known_good,
                  const char* from) {
  file.advise_one_pass();
  const std::int64_t bytes = file.end() - from;
  const CsvStretch checked = {known_good ? file.end() : from + bytes * check.part / check.parts,
                              from + bytes * (check.part + 1) / check.parts};
  std::vector<CsvPiece> pieces = pieces_of(file, from, check.threads);
  index_all(pieces, [&](CsvPiece& piece) {
    index_piece(file, layout, rules, classes.get(), checked, piece);
  });
  report(file, pieces, check);
  if (check.part == 0) {  // one rank speaks, of its part: as a rule the others are like it
    warn_of_rounding(file, layout, pieces, check.parts);
  }

  CsvRows rows;
  std::vector<std::vector<std::int32_t>> numbers;
  if (!rules.regression && classes == nullptr) {
    auto names = std::make_shared<ClassNames>();
    std::vector<const ClassNames*> parts;
    parts.reserve(pieces.size());
    for (const CsvPiece& piece : pieces) {
      parts.push_back(&piece.classes);
    }
    numbers = joined(parts, *names);
    if (names->size() > kMostCsvClasses) {
      refuse_so_many(file, from, layout.column(layout.target));
    }
    classes = std::move(names);
  }
  std::int64_t before = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    CsvRows& part = pieces[i].rows;
    rows.offsets.insert(rows.offsets.end(), part.offsets.begin(), part.offsets.end());
    for (const std::int32_t label : part.labels) {
      rows.labels.push_back(numbers.empty() ? label : numbers[i][static_cast<std::size_t>(label)]);
    }
    for (const std::int64_t row : part.dropped) {
      rows.dropped.push_back(before + row);
    }
    before += pieces[i].count;
    part = {};
  }
  for (std::size_t column = 0; column < layout.columns.size(); ++column) {
    CsvColumn& each = layout.columns[column];
    if (each.kind != Kind::kCategory || each.categories != nullptr) {
      continue;
    }
    auto names = std::make_shared<ClassNames>();
    std::vector<const ClassNames*> parts;
    parts.reserve(pieces.size());
    for (const CsvPiece& piece : pieces) {
      parts.push_back(&piece.categories[column]);
    }
    joined(parts, *names);
    if (names->size() > kMostCsvCategories) {
      refuse_so_many(file, from, each);
    }
    each.categories = std::move(names);
  }
  rows.classes = std::move(classes);
  return rows;
}

}  // namespace trireme::detail
