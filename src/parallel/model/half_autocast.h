#pragma once

namespace trireme::detail {

// An Autocast(at::kHalf) was made on this thread since the last call, where gradients are kept.
bool take_half_autocast();

// Weights have changed: casts of them that a scope around several steps still has are not used
// again.
void forget_casts();

}  // namespace trireme::detail
