#pragma once

#include <chrono>

// What every wait for peers goes by, whatever is between them.

namespace trireme::detail {

// Between two looks at whether the peers are alive.
inline constexpr auto kCheckInterval = std::chrono::milliseconds(10);

// When a waiting thread's last look is this long ago, this process itself was stopped (Ctrl-Z, a
// debugger), and that time is not the peers' fault.
inline constexpr auto kStoppedMyself = std::chrono::seconds(1);

}  // namespace trireme::detail
