#pragma once

#include <cstdint>
#include <vector>

#include "parallel/memory/optimizer_memory.h"

namespace trireme::detail {

// Note [pruned weights are negative zeros]
// What has been pruned has to stay so, at every stage, after a resume, with other ranks, in a copy
// on another machine. Masks would be one more state of every parameter to divide, save, send and
// check. Instead a pruned weight has the value -0.0, which says so itself wherever the weights go;
// in the formulas of models it is 0. Updates hardly ever make one (of a negative weight that decays
// to nothing, say); such a weight stays at the zero that it has reached.

// Whether EngineOptions::prune is about this parameter: it is named, or has two dimensions or more.
bool is_pruned(const Parameter& parameter, const Pruning& options);
void check_pruning(const std::vector<Parameter>& parameters, const EngineOptions& options);

// The elements of a run that are pruned, to stay so in what happens to it.
class PrunedElements {
 public:
  explicit PrunedElements(const Span& weights);
  void restore(const Span& run) const;

 private:
  std::vector<std::uint8_t> pruned_;
};

// Prunes as EngineOptions::prune says: in each of its steps the weights of least magnitude, before
// the update. Which those are does not depend on who owns them.
class Pruner {
 public:
  Pruner(const PartContext& context, OptimizerMemory& states);

  // Parameters and up to where each is pruned in the step that follows `steps` updates. Before an
  // update. Collective.
  struct Cut {
    std::size_t parameter = 0;
    std::uint64_t key = 0;           // weights with less, and ...
    std::vector<std::int64_t> ties;  // ... by owner, so many of the first of those that have it
  };
  std::vector<Cut> measure(std::int64_t steps);
  // In an update, before the optimizer: what this rank updates of them.
  void apply(const std::vector<Cut>& cuts);
  // Of all elements of the parameters that are pruned; NaN where there are none. Collective.
  double fraction();

 private:
  struct Select;
  bool is_due(std::int64_t step) const;
  // What this rank owns of a parameter, in the order of its elements.
  std::vector<Span> owned(std::size_t parameter, int owner) const;
  void add_up(std::vector<double>& counts);

  PartContext context_;
  OptimizerMemory& states_;
  std::vector<std::size_t> parameters_;
  bool begun_ = false;  // has pruned, in this process
};

}  // namespace trireme::detail
