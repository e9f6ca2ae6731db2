#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trireme/comm/communicator.h"

namespace trireme::detail {

// What a rank has to offer to a group: channels of its transport that are free, a bit each; all
// zero where there is no transport.
using GroupOffer = std::array<std::uint64_t, 64>;

// One group of a split, as all its ranks know it.
struct GroupPlan {
  std::vector<int> ranks;          // in the communicator that is split, in the group's order
  std::vector<GroupOffer> offers;  // theirs, in any order
  std::string name;                // which no other group of the world has
  int sum_group = 1;
  std::shared_ptr<OperationQueue> parent;
};

// Makes communicators of some of a communicator's ranks.
class GroupMaker {
 public:
  virtual ~GroupMaker() = default;
  virtual GroupOffer offer() const = 0;
  // Collective and blocking, of the group's ranks.
  virtual std::shared_ptr<Communicator> make(const GroupPlan& plan) = 0;
};

}  // namespace trireme::detail
