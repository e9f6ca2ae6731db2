#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "device/buffer.h"
#include "parallel/memory/disk_states.h"
#include "parallel/memory/parameter_memory.h"
#include "parallel/memory/parameter_rules.h"
#include "parallel/memory/state_window.h"

namespace trireme::detail {

// Masters, states and moving averages of what this rank updates (Ownership::updated), as runs that
// begin with that range: beside the parameters, in the host's memory or in a file
// (EngineOptions::offload). In a file, they are at hand in an update alone, a window at a time.
class OptimizerMemory {
 public:
  OptimizerMemory(const PartContext& context,
                  const ParameterRules& rules,
                  ParameterMemory& parameters);

  // The weights at full precision: masters, or the parameters themselves. Not those in a file.
  Span weights(std::size_t unit) const;
  Span averages(std::size_t unit) const;
  // The same of a piece, also of the window that is at hand.
  Span weights(std::size_t unit, const Piece& piece) const;
  Span averages(std::size_t unit, const Piece& piece) const;
  // Where a piece of the parameters is, which an update writes.
  Span parameters(std::size_t unit, const Piece& piece) const {
    return piece_of(parameters_.owned(unit), unit, piece);
  }
  // A piece with all that its update touches. `low`: where its parameters of fewer bits go, where
  // they are not in the same memory; null: to the parameters.
  ParameterSlice slice(std::size_t unit,
                       const Piece& piece,
                       const ConstSpan& gradient,
                       void* low = nullptr) const;
  // A piece of a run that begins with this rank's range.
  Span piece_of(const Span& run, std::size_t unit, const Piece& piece) const;

  // --- updates in windows, where states are not beside the parameters

  const std::vector<StateWindow>& windows() const { return windows_; }  // none: they are
  // An update takes these windows, by number, ascending; then each is at hand from next_window()
  // until put_back().
  void begin_windows(const std::vector<std::size_t>& order);
  void next_window();
  void put_back_window();
  void finish_windows();
  const DiskStates* disk() const { return disk_.get(); }  // null: they are in memory

  // --- between updates

  // The moving averages of a range that this rank updates, wherever they are.
  void read_averages(std::size_t unit, Range range, const Span& to);
  // What was written to a file is there.
  void flush();

  // All that this rank keeps of a parameter, by the kind that checkpoints have it under: its part,
  // or what every rank has whole, of this shape.
  struct Kept {
    std::string kind;
    Span run;  // in memory, or in a file: from this place of `store` on
    std::vector<std::int64_t> sizes{};
    StateStore* store = nullptr;
    std::uint64_t place = 0;
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
    // The arrays in a file, by their numbers there.
    std::size_t masters_array = 0;
    std::array<std::size_t, kMostOptimizerStates> state_arrays{};
    std::size_t averages_array = 0;
    std::size_t arrays = 0;
  };

  void number_arrays(std::size_t unit);
  // Of the window at hand, of one of these arrays, from an element of the unit on.
  std::byte* at_hand(std::size_t array, std::int64_t element) const;
  // An array in a file, between updates, from an element of the unit on.
  std::uint64_t place(std::size_t unit, std::size_t array, std::int64_t element) const;
  // Masters of a range, on the host: where they are, or in `copy`.
  Span read_masters(std::size_t unit, Range range, device::Buffer& copy) const;
  // Windows of a unit.
  std::vector<Range> ranges(std::size_t unit) const;
  Span run(std::size_t unit, const device::Buffer& memory) const;
  // Of the parameter with this index in its unit, the k-th state from an element of the unit on.
  std::byte* state(std::size_t unit, std::size_t index, std::size_t k, std::int64_t element) const;
  // Of a model on a GPU, what the host updates.
  bool has_masters(std::size_t unit) const {
    return context_.plan.units[unit].trainable &&
           (context_.plan.units[unit].has_masters() || home_ != context_.plan.device);
  }

  PartContext context_;
  const ParameterRules& rules_;
  ParameterMemory& parameters_;
  Device home_;  // whose memory they are in, or pass through
  std::vector<UnitState> units_;
  std::vector<StateWindow> windows_;
  std::unique_ptr<DiskStates> disk_;
  std::vector<std::size_t> order_;  // windows of an update
  std::size_t turn_ = 0;            // of those that were at hand
};

}  // namespace trireme::detail
