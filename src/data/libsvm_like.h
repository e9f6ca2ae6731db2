#pragma once

#include <string>

#include "trireme/data/preprocessing.h"

namespace trireme::detail {

// A libsvm file whose features and labels mean what they mean in the training file. What that file
// does not know is a DataError.
NewData open_libsvm_like(const Preprocessing& training,
                         const std::string& file,
                         NewDataOptions::Targets targets,
                         const SharedCheck& check = {});

}  // namespace trireme::detail
