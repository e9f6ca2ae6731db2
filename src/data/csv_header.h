#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/missing_values.h"

namespace trireme::detail {

// Whether the first line of a CSV file has the names of its columns: values are numbers, so a word
// where a value should be is a name, unless it stands for a missing one. The target may be words
// itself and tells nothing, unless numbers are predicted, and so do categorical columns. `target`:
// the column, or -1 where it is asked for by a name.
bool looks_like_names(const std::vector<std::string>& first_line,
                      std::int64_t target,
                      bool regression,
                      const MissingValues& missing,
                      const std::vector<std::int64_t>& categorical = {});

// A name, and neither a number with a typing error in it ("1.5x") nor a word for a missing one.
bool is_csv_word(const std::string& cell);

// Whether a first line that was taken for a sample is more likely one of names, although its values
// are numbers ("2019,2020,region"): its class occurs nowhere else, and each other one at least
// twice. `labels`: of all rows.
bool may_be_names(const std::vector<std::int32_t>& labels);

}  // namespace trireme::detail
