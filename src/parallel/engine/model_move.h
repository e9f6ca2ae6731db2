#pragma once

#include <vector>

#include "parallel/engine/engine_parts.h"

namespace trireme::detail {

// Note [models that are given back]
// All memory but that of the parameters is there before the first of them moves. Theirs is taken
// unit by unit, while that of their tensors goes: a model that fits once need not fit twice. Where
// a later unit fails, those that have moved are read back from where they are, into memory that
// they left before. Those whose values were different (rounded to half precision) stay where they
// were until all have moved, and so do those that build_sharded has divided among the ranks, which
// takes less than the sums and states that are written to after that. A frozen one has neither:
// what was divided is given back whole then.
class ModelMove {
 public:
  explicit ModelMove(EngineParts& parts)
      : parts_(parts), originals_(parts.plan.parameters.size()) {}

  // Moves the next unit into the engine's memory. Collective.
  void take(std::size_t unit);
  // Gives back what has moved. Collective; does not throw.
  void give_back();

 private:
  EngineParts& parts_;
  // By parameter: what it was before it moved, where it is not read back; undefined elsewhere.
  std::vector<at::Tensor> originals_;
};

}  // namespace trireme::detail
