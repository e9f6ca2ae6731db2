#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/class_names.h"
#include "data/mapped_file.h"
#include "trireme/data/preprocessing.h"

namespace trireme::detail {

struct CsvColumn {
  enum class Kind { kValue, kCategory, kTarget, kIgnored } kind = Kind::kValue;
  std::string title;         // for messages: column "a", or column number 3 (from 0)
  std::int64_t feature = 0;  // its first one
  std::shared_ptr<const ClassNames> categories{};  // of the training file, once they are known
};

// Which column of a CSV file is what.
struct CsvLayout {
  char separator = ',';
  std::vector<std::string> names{};  // empty without a header
  std::vector<CsvColumn> columns{};
  std::int64_t target = -1;  // -1: not in the file, or not looked at
  std::int64_t features = 0;
  std::vector<std::string> notes{};  // what was assumed

  std::int64_t size() const { return static_cast<std::int64_t>(columns.size()); }
  const CsvColumn& column(std::int64_t number) const {
    return columns[static_cast<std::size_t>(number)];
  }
  bool is_last(std::int64_t number) const { return number == size() - 1; }
  // Once all categories are known.
  void number_features();
};

// By the first line of a file to train on, and what is asked for. `from` becomes the start of the
// rows. Throws DataError, and ConfigError where a column that is asked for is not there.
CsvLayout find_csv_layout(const MappedFile& file, const CsvOptions& options, const char*& from);

// Of a file whose columns have to be those of the training file; the target may be missing where
// `targets` lets it.
CsvLayout find_csv_layout(const MappedFile& file,
                          const Preprocessing& training,
                          const NewDataOptions& options,
                          const char*& from);

}  // namespace trireme::detail
