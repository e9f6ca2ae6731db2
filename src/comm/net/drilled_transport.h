#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "comm/transport/transport.h"
#include "trireme/core/drill.h"

namespace trireme::detail {

// Where the faults of a drill come from.
struct LinkDrill {
  // What the message to a rank on another machine suffers.
  std::function<std::optional<LinkFault>(int peer)> fault;
  // Which of so many bits of a message is flipped.
  std::function<std::optional<std::uint64_t>(const DrillPlan::Sent& sent, std::uint64_t bits)> flip;
};

// The same transport with the faults of a drill (docs/elastic.md), below the seals that find them:
// messages to other machines are held back, with all that come after them on the same way; or
// arrive with a bit flipped; or find their connection broken off. What ranks say as a world ends
// suffers nothing. `machines`: by rank, which one it is on.
std::shared_ptr<Transport> drill_transport(std::shared_ptr<Transport> transport,
                                           std::vector<int> machines,
                                           std::int64_t epoch,
                                           LinkDrill drill);

// The drill that the launcher of this rank has planned.
LinkDrill planned_drill(int ranks);

}  // namespace trireme::detail
