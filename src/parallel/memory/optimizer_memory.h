#pragma once

#include <string>
#include <vector>

#include "device/buffer.h"
#include "parallel/memory/parameter_memory.h"
#include "parallel/memory/parameter_rules.h"

namespace trireme::detail {

// Masters, states and moving averages of what this rank updates (Ownership::updated), as runs that
// begin with that range.
class OptimizerMemory {
 public:
  OptimizerMemory(const PartContext& context,
                  const ParameterRules& rules,
                  ParameterMemory& parameters);

  // The weights at full precision: masters, or the parameters themselves.
  Span weights(std::size_t unit) const;
  Span averages(std::size_t unit) const;
  // A piece with all that its update touches.
  ParameterSlice slice(std::size_t unit, const Piece& piece, const ConstSpan& gradient) const;
  // A piece of a run that begins with this rank's range.
  Span piece_of(const Span& run, std::size_t unit, const Piece& piece) const;

  // All that this rank keeps of a parameter, by the kind that checkpoints have it under: its part,
  // or what every rank has whole, of this shape.
  struct Kept {
    std::string kind;
    Span run;
    std::vector<std::int64_t> sizes{};
  };
  std::vector<Kept> kept(std::size_t parameter) const;

  // Takes the full-precision values of a unit from rank 0's tensors, while they are still there.
  // Collective.
  void take_masters(std::size_t unit);
  // Starts the moving averages, when the parameters are in their memory.
  void take_averages(std::size_t unit);
  // Masters were written from outside: parameters of fewer bits follow.
  void round_masters(std::size_t unit);
  // The same of a piece of a rounded unit. From several threads.
  void round(std::size_t unit, const Piece& piece) const;
  // A parameter was written from outside: where its value of fewer bits is another one, the master
  // follows; elsewhere it keeps its precision.
  void parameter_changed(std::size_t parameter, const at::Tensor& before, const at::Tensor& now);

 private:
  struct UnitState {
    device::Buffer masters;
    std::vector<device::Buffer> states;
    ParameterRules::Layout layout;  // of the states
    device::Buffer averages;
    std::vector<MemoryLedger::Charge> charges;
  };

  Span run(std::size_t unit, const device::Buffer& memory) const;
  // Of the parameter with this index in its unit, the k-th state from an element of the unit on.
  std::byte* state(std::size_t unit, std::size_t index, std::size_t k, std::int64_t element) const;
  bool has_masters(std::size_t unit) const {
    return context_.plan.units[unit].trainable && context_.plan.units[unit].has_masters();
  }

  PartContext context_;
  const ParameterRules& rules_;
  ParameterMemory& parameters_;
  std::vector<UnitState> units_;
};

}  // namespace trireme::detail
