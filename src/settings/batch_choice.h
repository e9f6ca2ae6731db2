#pragma once

#include "trireme/settings/model_kinds.h"

namespace trireme::detail {

// batch = micro_batch x micro-batches; the last are accumulate x ranks where accumulate is given.
// Fills in those that were left open, and the ranks, or throws ConfigError.
void choose_batch(TrainSettings& settings, const ModelKind& kind);

}  // namespace trireme::detail
