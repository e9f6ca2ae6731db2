#pragma once

#include <string>

#include "data/csv_layout.h"
#include "data/missing_values.h"

namespace trireme::detail {

// Why a first line that was taken for a sample may as well have the names of columns, although they
// are numbers ("2019,2020,2021"); empty: it is a sample, as a line of whole numbers in columns of
// whole numbers is. Names are whole numbers, no two alike, and each is unlike its column: that has
// fractions, or all its numbers are far from it. Looks at the beginning of the file. `begin`: where
// the first line begins; `own_class`: its target occurs nowhere else.
std::string why_may_be_names(const MappedFile& file,
                             const CsvLayout& layout,
                             const MissingValues& missing,
                             bool regression,
                             bool own_class,
                             const char* begin);

}  // namespace trireme::detail
