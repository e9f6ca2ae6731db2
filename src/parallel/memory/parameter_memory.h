#pragma once

#include <memory>
#include <span>

#include "parallel/memory/part_context.h"
#include "trireme/parallel/engine.h"

namespace trireme::detail {

// Where the parameters are: whole on every rank, one copy for all, or a part on each. The rest of
// the engine knows only what each rank owns (Ownership).
class ParameterMemory {
 public:
  virtual ~ParameterMemory() = default;

  // Moves a unit's parameters (rank 0's values) into this memory, and points their tensors at it.
  // One unit at a time, so that a model never takes its memory twice. Collective.
  virtual void adopt(std::size_t unit) = 0;
  // Before and after units are read although not all have been adopted, which failed. Collective.
  virtual void settle() {}

  // What this rank updates of a unit (Ownership::updated); writable in an update. Not of a unit
  // with masters that are rounded.
  virtual Span owned(std::size_t unit) = 0;

  // --- an update (update.h)

  // Before anything is changed: the update will change no more of a sparse unit than these rows,
  // which ascend, in what this rank updates. Where it is sent, they alone are. Collective.
  virtual void announce_rows(std::size_t /*unit*/, std::span<const std::int64_t> /*rows*/) {}
  // Waits until no rank reads any more. Collective.
  virtual void begin_update() = 0;
  // A part of what this rank updates of a rounded unit becomes what is left of these masters, from
  // several threads. All of it, between begin_update and updated.
  virtual void round(std::size_t /*unit*/, Range /*range*/, const float* /*masters*/) {}
  // This rank has written its range: may begin to tell the others.
  virtual void updated(std::size_t unit) = 0;
  // Every rank has written its range of every unit, and all can read it. Collective.
  virtual void finish_update() = 0;

  // A step is over, whether it changed anything or not.
  virtual void end_of_step() {}

  // Elements of a unit, from wherever they are. Not collective: no update may be on its way.
  virtual void read(std::size_t unit, Range range, const Span& to) = 0;

  // Elements of a unit from outside, the same on every rank; visible after finish_update. Not of a
  // rounded one, whose masters are written.
  virtual void write(std::size_t unit, Range range, const ConstSpan& from) = 0;

  // Points a parameter's tensor at this memory again, after it was elsewhere.
  virtual void attach(std::size_t parameter) = 0;

  // Of rounded parameters, so far.
  virtual CompressionUse::Weights received() const { return {}; }
};

// For the home that the plan's ownership says. Collective.
std::unique_ptr<ParameterMemory> make_parameter_memory(const PartContext& context);

// Stages 0 to 2: whole on every rank.
std::unique_ptr<ParameterMemory> make_replicated_memory(const PartContext& context);
// Stage 3 on one machine, also on its GPUs.
std::unique_ptr<ParameterMemory> make_mapped_memory(const PartContext& context);
std::unique_ptr<ParameterMemory> make_copied_memory(const PartContext& context);
// Stage 3 on several.
std::unique_ptr<ParameterMemory> make_scattered_memory(const PartContext& context);

}  // namespace trireme::detail
