#pragma once

#include <vector>

#include "trireme/comm/communicator.h"
#include "trireme/shard/state_view.h"

// A state that goes from engines of some ranks to engines of others, in memory.

namespace trireme::detail {

// What this rank has of a state, in memory of its own.
struct StateCopy {
  StateView view;
  std::vector<std::vector<std::byte>> memory;

  static StateCopy of(const StateView& view);
};

// Fills `into` with what the ranks have in `from`: what a rank has itself it copies, the rest comes
// from the next rank that has it. The tensors of `from` are the same on all ranks, and so are those
// of `into`; generators stay each rank's own. Collective. Throws ConfigError on all ranks, and
// changes nothing, where a tensor is missing, or a part of it, or where it is of another shape.
void move_state(const StateView& from, const StateView& into, Communicator& ranks);

}  // namespace trireme::detail
