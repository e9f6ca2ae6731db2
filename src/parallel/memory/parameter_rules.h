#pragma once

#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "device/buffer.h"
#include "parallel/model/parameter_table.h"
#include "parallel/model/unit.h"
#include "trireme/comm/communicator.h"
#include "trireme/core/memory_ledger.h"
#include "trireme/optim/optimizer.h"
#include "trireme/shard/range.h"

namespace trireme::detail {

// The optimizer by parameter: its rule, its learning rate, its states, and what the rule's passes
// have found out about it.
class ParameterRules {
 public:
  // Throws ConfigError where a user's rule says something that cannot be, or where a group is of
  // parameters that are not there.
  ParameterRules(const Optimizer& optimizer,
                 const std::vector<Parameter>& parameters,
                 MemoryLedger& ledger);

  // Throws ConfigError where one of the rules cannot work there.
  void check_device(Device device) const;

  // Throws ConfigError where one of the rules needs more than one pass over a parameter's elements,
  // of which not all are at hand (EngineOptions::offload).
  void check_one_pass() const;

  const Optimizer& optimizer() const { return *optimizer_; }
  const Optimizer& rule(std::size_t parameter) const { return *rules_[parameter]; }
  // Which parameters have which rule, for ranks to compare.
  std::string assignment() const;
  // In proportion to that of the optimizer.
  double rate(std::size_t parameter, double base) const;
  const std::vector<OptimizerState>& states(std::size_t parameter) const {
    return states_[parameter];
  }
  // Of those that are not divided.
  std::byte* whole_state(std::size_t parameter, std::size_t state) const {
    return static_cast<std::byte*>(whole_[parameter].states[state]);
  }

  // Note [where divided states are]
  // The k-th states of a unit are one array. Where all of its parameters have one, it looks like
  // the range of the unit that it belongs to; elsewhere it holds those that there are, one after
  // another.
  struct Layout {
    std::array<std::int64_t, kMostOptimizerStates> numel{};  // of each array
    // By the parameter's index in the unit: where its part of each array begins, and -1 where it
    // has no such state.
    std::vector<std::array<std::int64_t, kMostOptimizerStates>> first;
  };
  Layout layout(const Unit& unit, Range range) const;
  // Numbers that a unit's parameters have as states, all ranks together.
  std::int64_t state_numel(const Unit& unit) const;

  // Slices of one parameter that this rank updates.
  struct Part {
    std::size_t parameter = 0;
    ParameterSlice slice;
  };
  // Calls work(0) to work(count - 1), on whatever threads there are.
  using Run = std::function<void(std::size_t count, const std::function<void(std::size_t)>& work)>;
  bool has_passes() const { return most_passes_ > 0; }
  // In a step: all passes over these parts and those of the other ranks; `ranks` is null where this
  // one has everything. Collective.
  void measure(const std::vector<Part>& parts,
               const GradientTransform& transform,
               const Run& run,
               Communicator* ranks);
  // For a slice's update: what was found out.
  const WholeParameter& whole(std::size_t parameter) const { return whole_[parameter]; }

  // A step begins, of the parameters that are used in it, and ends.
  void begin_step(const std::vector<bool>& used);
  void finish_step();
  // Updates so far, with that of a step that has begun, by parameter.
  const std::vector<std::int64_t>& steps() const { return steps_; }
  void set_steps(std::vector<std::int64_t> steps) { steps_ = std::move(steps); }

 private:
  void measure_part(const Part& part,
                    std::size_t pass,
                    const GradientTransform& transform,
                    double* numbers) const;

  std::unique_ptr<Optimizer> optimizer_;
  std::vector<const Optimizer*> rules_;  // this and the following by parameter
  std::vector<bool> used_;
  std::vector<std::vector<OptimizerState>> states_;
  std::vector<std::vector<OptimizerPass>> passes_;
  std::vector<WholeParameter> whole_;
  std::vector<std::int64_t> steps_;
  std::size_t most_passes_ = 0;
  std::vector<device::Buffer> memory_;
  device::Buffer seen_;  // numbers of a pass that a device leaves
  std::vector<MemoryLedger::Charge> charges_;
};

}  // namespace trireme::detail
