#pragma once

namespace trireme::detail {

// An Autocast(at::kHalf) was made on this thread since the last call, where gradients are kept.
bool take_half_autocast();

}  // namespace trireme::detail
