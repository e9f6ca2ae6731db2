#pragma once

#include <memory>

#include "data/csv_row_check.h"

namespace trireme::detail {

// One pass over the rows, by several threads: where each begins and its class, and that all cells
// are what they should be. `classes`, and the layout's categories, are those of the training file;
// where they are null the file is the training file, and they are found. Throws DataError that
// lists what is wrong in the part that is to be checked, and in those of the others. `known_good`:
// nothing is checked here.
CsvRows index_csv(const MappedFile& file,
                  CsvLayout& layout,
                  const CsvRules& rules,
                  std::shared_ptr<const ClassNames> classes,
                  const SharedCheck& check,
                  bool known_good,
                  const char* from);

}  // namespace trireme::detail
