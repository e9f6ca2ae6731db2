#pragma once

#include <string>

#include "trireme/data/preprocessing.h"

namespace trireme::detail {

// A CSV file whose columns, categories and classes mean what they mean in the training file; its
// values are as they stand there. What that file does not know is a DataError.
NewData open_csv_like(const Preprocessing& training,
                      const std::string& file,
                      const NewDataOptions& like,
                      const SharedCheck& shared = {});

}  // namespace trireme::detail
