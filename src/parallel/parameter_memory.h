#pragma once

#include <memory>
#include <vector>

#include "parallel/parameter_table.h"
#include "parallel/unit.h"
#include "trireme/core/memory_ledger.h"

namespace trireme::detail {

// Where the parameters are: whole on every rank, one copy for all, or a part on each. The rest of
// the engine knows only that every rank owns a range of every unit.
class ParameterMemory {
 public:
  virtual ~ParameterMemory() = default;

  // Moves a unit's parameters (rank 0's values) into this memory, and points their tensors at it.
  // One unit at a time, so that a model never takes its memory twice. Collective.
  virtual void adopt(std::size_t unit) = 0;
  // Before and after units are read although not all have been adopted, which failed. Collective.
  virtual void settle() {}

  // This rank's range of a unit; writable between two calls of finish_update. What the ranges of
  // an update are when parameters are whole everywhere and everyone updates everything: all of it.
  virtual std::byte* owned(std::size_t unit) = 0;

  // Waits until no rank reads any more. Collective.
  virtual void begin_update() = 0;
  // This rank has written its range: may begin to tell the others.
  virtual void updated(std::size_t unit) = 0;
  // Every rank has written its range of every unit, and all can read it. Collective.
  virtual void finish_update() = 0;

  // A step is over, whether it changed anything or not.
  virtual void end_of_step() {}

  // Elements of a unit into `to`, from wherever they are. Not collective: no update may be on its
  // way.
  virtual void read(std::size_t unit, Range range, std::byte* to) = 0;

  // Elements of a unit from outside, the same on every rank; visible after finish_update.
  virtual void write(std::size_t unit, Range range, const std::byte* from) = 0;

  // Points a parameter's tensor at this memory again, after it was elsewhere.
  virtual void attach(std::size_t parameter) = 0;
};

struct ParameterMemoryContext {
  Communicator& ranks;
  std::vector<Parameter>& parameters;
  const std::vector<Unit>& units;
  const std::vector<Place>& places;
  const EngineOptions& options;
  MemoryLedger& ledger;
  std::weak_ptr<const void> engine;  // gone with the engine
};

// Stages 0 to 2: whole on every rank. `divided`: each rank updates its range and the others fetch
// it; otherwise every rank updates everything.
std::unique_ptr<ParameterMemory> make_replicated_memory(const ParameterMemoryContext& context,
                                                        bool divided);
// Stage 3 on one machine.
std::unique_ptr<ParameterMemory> make_mapped_memory(const ParameterMemoryContext& context);
std::unique_ptr<ParameterMemory> make_copied_memory(const ParameterMemoryContext& context);
// Stage 3 on several.
std::unique_ptr<ParameterMemory> make_scattered_memory(const ParameterMemoryContext& context);

}  // namespace trireme::detail
