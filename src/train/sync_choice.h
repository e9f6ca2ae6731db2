#pragma once

#include <memory>
#include <optional>

#include "trireme/average/averaging.h"
#include "trireme/comm/world.h"
#include "trireme/server/stale_engine.h"
#include "trireme/settings/train_settings.h"

namespace trireme::detail {

// What settings.sync stands for: replicas, and how they are averaged. Nothing where it is exact,
// or a parameter server. Collective.
std::optional<Replicas> replicas_of(const TrainSettings& settings,
                                    const std::shared_ptr<World>& world);
Averaging::Mode averaging_mode(const TrainSettings& settings);
std::unique_ptr<Averaging> averaging_of(const TrainSettings& settings,
                                        EngineBase& engine,
                                        const std::optional<Replicas>& replicas);

// Of a parameter server.
Stale stale_of(const TrainSettings& settings, const EngineOptions& engine);

}  // namespace trireme::detail
