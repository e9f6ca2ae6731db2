#pragma once

#include <memory>
#include <vector>

#include "checkpoint/vault_segment.h"
#include "trireme/comm/world.h"

namespace trireme::detail {

// What one rank saved of a version, and who can read it now.
struct VaultPart {
  std::vector<int> holders{};            // ranks whose machine has it; the same on all ranks
  std::shared_ptr<VaultSegment> here{};  // null: this rank's has not
  int place = 0;

  bool is_everywhere(const World& world) const {
    return holders.size() == static_cast<std::size_t>(world.size());
  }
  // Who tells the others; not one for all parts.
  int teller(std::size_t owner) const { return holders[owner % holders.size()]; }
};

// Fills `into` from the parts. Collective where not all of them are everywhere, else not.
void load_parts(World& world,
                const std::vector<VaultPart>& parts,
                const StateView& into,
                bool with_generators);

}  // namespace trireme::detail
