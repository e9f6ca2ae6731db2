#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "train/automatic_sync.h"
#include "trireme/average/phased_engine.h"
#include "trireme/comm/world.h"
#include "trireme/settings/train_settings.h"
#include "trireme/settings/values.h"

namespace trireme::detail {

// A run with exact steps and others in which replicas are averaged: by its schedule, or as what is
// measured says (settings.sync = auto).
class RunPhases {
 public:
  using Say = std::function<void(const std::string& text)>;

  // Collective; so is all below. `say` is for the rank that reports.
  RunPhases(const TrainSettings& settings,
            std::shared_ptr<torch::nn::Module> module,
            const Optimizer& optimizer,
            const EngineOptions& engine,
            std::shared_ptr<World> world,
            Say say);

  PhasedEngineBase& engine() { return *engine_; }
  const PhasedEngineBase& engine() const { return *engine_; }

  // Before the first step of this part of a run.
  void begin();
  // Of the phase that this is in; 0: it is exact.
  std::int64_t averaged_every() const;
  // What a step was like, as all ranks have heard it.
  struct Step {
    double seconds = 0;
    double exchange_seconds = 0;     // of the rank with the least
    std::int64_t network_bytes = 0;  // of all ranks
    bool averaged = false;
  };
  // After a step: enters the next phase where it is time. Returns what has changed, in one line;
  // empty: nothing.
  std::string end_step(const Step& step);
  // As a setting: "0:exact,400:8".
  std::string schedule() const;

 private:
  bool measures(std::int64_t step) const;
  bool may_choose() const;
  std::string decide(std::int64_t step);

  const TrainSettings& settings_;
  const std::shared_ptr<World> world_;
  const Say say_;
  const std::vector<SyncChange> changes_;
  std::unique_ptr<PhasedEngineBase> engine_;
  AutomaticSync automatic_;
  AutomaticSync::Measured measured_;
  bool has_said_ = false;  // what it was like when nothing was to be changed
};

}  // namespace trireme::detail
