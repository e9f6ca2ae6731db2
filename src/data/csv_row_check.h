#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/csv_layout.h"
#include "data/csv_rounding.h"
#include "data/data_faults.h"
#include "data/missing_values.h"

namespace trireme::detail {

// More different words than this are no classes but numbers, or names.
inline constexpr std::int64_t kMostCsvClasses = 1 << 20;
// Each is a feature of every sample.
inline constexpr std::int64_t kMostCsvCategories = 1 << 14;

// What cells mean, beside the layout.
struct CsvRules {
  bool regression = false;
  CsvOptions::Missing missing = CsvOptions::Missing::kRefuse;
  CsvOptions::Unseen unseen = CsvOptions::Unseen::kRefuse;
  MissingValues missing_values;
  CsvOptions::Rounded rounded = CsvOptions::Rounded::kFloat32;
  std::vector<std::string> missing_words{};  // as they were given, for messages
};

// The rows of a CSV file.
struct CsvRows {
  std::vector<std::int64_t> offsets;  // of their lines
  std::vector<std::int32_t> labels;   // of classes
  std::shared_ptr<const ClassNames> classes;
  std::vector<std::int64_t> dropped;  // rows, as they stand in the file, that are not among these
};

// Of a file's bytes.
struct CsvStretch {
  const char* begin = nullptr;
  const char* end = nullptr;
};

// Rows that begin in a stretch of the file.
struct CsvPiece {
  const char* begin = nullptr;
  const char* end = nullptr;
  CsvRows rows;        // labels are numbers of `classes`; dropped count from the piece's first row
  ClassNames classes;  // in the order of their appearance, where they are not known before
  std::vector<ClassNames> categories;  // the same, by column
  // By column, of the rows that were looked at: in samples, and where those are rounded further.
  std::vector<CsvRounding> rounding;
  std::vector<CsvRounding> further_rounding;
  std::int64_t count = 0;  // of rows, those dropped too
  DataFaults faults;
};

// Goes over the rows of a piece. All cells of those in `checked` are looked at; of others only what
// is needed to know their classes, categories and whether they are dropped. `classes`: those of the
// training file; null: they are found.
void index_piece(const MappedFile& file,
                 const CsvLayout& layout,
                 const CsvRules& rules,
                 const ClassNames* classes,
                 const CsvStretch& checked,
                 CsvPiece& piece);

// What a cell of numbers that is there has to be: as it is written, and as samples have it.
std::optional<double> csv_number_written(std::string_view cell);
std::optional<float> csv_number(std::string_view cell);

// Too many classes or categories.
[[noreturn]] void refuse_so_many(const MappedFile& file,
                                 const char* place,
                                 const CsvColumn& column);

}  // namespace trireme::detail
