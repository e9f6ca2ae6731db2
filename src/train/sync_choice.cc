#include "train/sync_choice.h"

#include "trireme/core/error.h"
#include "trireme/settings/differences.h"
#include "trireme/settings/values.h"

namespace trireme::detail {

Averaging::Mode averaging_mode(const TrainSettings& s) {
  if (s.sync == Synchronisation::kLocal || s.sync == Synchronisation::kAutomatic) {
    return Local{.steps = s.sync_every};
  }
  if (s.sync == Synchronisation::kDiLoCo) {
    return DiLoCo{
        .steps = s.sync_every,
        .outer = {.lr = s.outer_lr, .momentum = s.outer_momentum, .nesterov = s.outer_nesterov}};
  }
  TRIREME_ASSERT(
      s.sync == Synchronisation::kGossip, "sync has no replicas: ", value_text("sync", s));
  return Gossip{.steps = s.sync_every,
                .graph = s.sync_graph == GossipGraph::kRing          ? Gossip::Graph::kRing
                         : s.sync_graph == GossipGraph::kExponential ? Gossip::Graph::kExponential
                                                                     : Gossip::Graph::kRandom,
                .seed = s.seed};
}

std::optional<Replicas> replicas_of(const TrainSettings& settings,
                                    const std::shared_ptr<World>& world) {
  if (settings.sync == Synchronisation::kExact || trains_stale(settings)) {
    return std::nullopt;
  }
  return Replicas(world, {.ranks = ranks_of_replica(settings)});
}

Stale stale_of(const TrainSettings& s, const EngineOptions& engine) {
  const bool arrival = by_arrival(s);
  return {.bound = s.sync == Synchronisation::kAsynchronous ? Stale::kNoBound : s.staleness,
          .order = arrival ? Order::kArrival : Order::kClock,
          .servers = static_cast<int>(s.servers),
          .record = arrival && !s.run.empty() && s.folds == 0 ? s.run + kArrivalsFolder : "",
          .replay = s.replay.empty() ? "" : s.replay + kArrivalsFolder,
          .subject = arrival ? recorded_subject(s) : "",
          .engine = engine};
}

std::unique_ptr<Averaging> averaging_of(const TrainSettings& settings,
                                        EngineBase& engine,
                                        const std::optional<Replicas>& replicas) {
  if (!replicas || has_phases(settings)) {
    return nullptr;
  }
  AveragingOptions options{.states = settings.sync_states};
  for (const SyncChange& change : sync_changes(settings)) {
    options.schedule.push_back({change.step, change.every});
  }
  return std::make_unique<Averaging>(engine, *replicas, averaging_mode(settings), options);
}

}  // namespace trireme::detail
