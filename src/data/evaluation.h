#pragma once

#include <memory>
#include <string>

#include "trireme/data/readers.h"

// Files to evaluate on: columns, features and classes mean what they mean in the training file
// (`train`, opened by the function of the same format). What that file does not know is a
// DataError.

namespace trireme::detail {

std::shared_ptr<Dataset> open_csv_like(const Dataset& train,
                                       const std::string& file,
                                       const CsvOptions& options);
std::shared_ptr<Dataset> open_libsvm_like(const Dataset& train, const std::string& file);

}  // namespace trireme::detail
