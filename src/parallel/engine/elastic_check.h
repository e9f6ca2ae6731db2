#pragma once

#include <string>

#include "trireme/parallel/options.h"

namespace torch::nn {
class Module;
}

namespace trireme::detail {

// In an elastic job whose number of ranks may change, what depends on that number is refused by its
// name, unless the user has allowed it. Throws ConfigError.
void check_elastic_engine(const EngineOptions& options, torch::nn::Module& model);
void check_elastic(const std::string& what);

}  // namespace trireme::detail
