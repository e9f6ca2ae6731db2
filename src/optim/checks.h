#pragma once

#include "trireme/optim/optimizer.h"

// What every rule asks of its settings and slices; throw ConfigError.

namespace trireme::detail {

void check_rate(const char* rule, double lr);
void check_beta(const char* rule, const char* name, double beta);
void check_not_negative(const char* rule, const char* name, double value);
void check_positive(const char* rule, const char* name, double value);
void check_slice(const Optimizer& rule, const ParameterSlice& slice);

}  // namespace trireme::detail
