#pragma once

#include "comparison.h"

// Cross-validated runs, by what their folds came to.

namespace trireme::tools {

// Of runs of which one at least is cross-validated. Of interrupted ones, the folds that have
// finished count.
void compare_folds(Comparison& comparison);

}  // namespace trireme::tools
