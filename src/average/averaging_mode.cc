#include "average/averaging_mode.h"

#include <cmath>

#include "trireme/core/error.h"

namespace trireme::detail {

std::string mode_name(const Averaging::Mode& mode) {
  constexpr const char* kNames[] = {"local", "diloco", "gossip"};
  return kNames[mode.index()];
}

std::int64_t steps_of(const Averaging::Mode& mode) {
  return std::visit([](const auto& each) { return each.steps; }, mode);
}

void check_steps(std::int64_t steps) {
  constexpr std::int64_t kMost = std::int64_t{1} << 60;  // steps are added to it
  TRIREME_CHECK(
      steps >= 1, "averaging: expected 1 or more steps between averagings, found ", steps);
  TRIREME_CHECK(steps <= kMost,
                "averaging: expected at most {} steps between averagings, found {}",
                {kMost, steps});
}

void check_averaging(const Averaging::Mode& mode, const AveragingOptions& options) {
  check_steps(steps_of(mode));
  std::int64_t last = -1;
  for (const AveragingOptions::Change& change : options.schedule) {
    check_steps(change.steps);
    TRIREME_CHECK(change.from > last,
                  "averaging: expected a schedule of ascending steps from 0 on, found {} after {}",
                  {change.from, last});
    last = change.from;
  }
  if (const auto* diloco = std::get_if<DiLoCo>(&mode)) {
    TRIREME_CHECK(std::isfinite(diloco->outer.lr) && diloco->outer.lr > 0,
                  "DiLoCo: expected an outer learning rate above 0, found ",
                  diloco->outer.lr);
    TRIREME_CHECK(diloco->outer.momentum >= 0 && diloco->outer.momentum < 1,
                  "DiLoCo: expected an outer momentum of 0 or more and below 1, found ",
                  diloco->outer.momentum);
  }
}

void check_engine_options(const EngineOptions& engine,
                          const Averaging::Mode& mode,
                          const Replicas& replicas) {
  TRIREME_CHECK(engine.prune.fraction == 0,
                "Averaging: expected an engine without EngineOptions::prune, found one that prunes "
                "{} of its weights: each replica prunes others, and averages bring them back",
                {engine.prune.fraction});
  TRIREME_CHECK(engine.offload.to != Offload::To::kDisk,
                "Averaging: expected an engine whose weights and states are in memory, found "
                "EngineOptions::offload to \"{}\": leave it out",
                {engine.offload.folder});
  TRIREME_CHECK(!std::holds_alternative<DiLoCo>(mode) || engine.shard_group == ShardGroup::kWorld ||
                    replicas.mine()->one_machine(),
                "DiLoCo: expected EngineOptions::shard_group kWorld in a replica on several "
                "machines, found kMachine: leave it out");
}

std::string description_of(const Averaging::Mode& mode, const AveragingOptions& options) {
  std::string text =
      concat("{} every {} steps{}",
             {mode_name(mode), steps_of(mode), options.states ? ", states too" : ""});
  if (const auto* diloco = std::get_if<DiLoCo>(&mode)) {
    text += concat(
        ", outer lr {}, momentum {}{}",
        {diloco->outer.lr, diloco->outer.momentum, diloco->outer.nesterov ? ", nesterov" : ""});
  }
  if (const auto* gossip = std::get_if<Gossip>(&mode)) {
    text += concat(", graph {}, seed {}", {static_cast<int>(gossip->graph), gossip->seed});
  }
  for (const AveragingOptions::Change& change : options.schedule) {
    text += concat(", from step {} every {}", {change.from, change.steps});
  }
  return text;
}

}  // namespace trireme::detail
