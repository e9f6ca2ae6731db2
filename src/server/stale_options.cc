#include "server/stale_options.h"

#include <algorithm>

#include "parallel/engine/elastic_check.h"
#include "trireme/comm/kept_memory.h"
#include "trireme/comm/world.h"
#include "trireme/core/error.h"
#include "trireme/core/index.h"

namespace trireme::detail {
namespace {

void check_replicas(const Stale& stale, const World* world) {
  constexpr std::int64_t kMostBound = 100;
  TRIREME_CHECK(stale.replicas == 0 || stale.replicas == 1,
                "Stale::replicas: expected 0 or 1, found {}: one copy, with the launcher of the "
                "machine, outlives all ranks",
                {stale.replicas});
  if (stale.replicas == 0) {
    return;
  }
  TRIREME_CHECK(stale.order == Order::kClock,
                "Stale::replicas: expected Order::kClock, found Order::kArrival, in which no two "
                "owners have the same gradients at any instant: save checkpoints instead");
  TRIREME_CHECK(stale.bound <= kMostBound,
                "Stale::replicas: expected a bound of at most {}, for as many versions of the "
                "weights are kept, found {}",
                {kMostBound, stale.bound});
  TRIREME_CHECK(world != nullptr,
                "Stale::replicas: expected the world, found a group of its ranks: pass what "
                "init() returned");
  TRIREME_CHECK(world->machines() == 1,
                "Stale::replicas: expected a world on one machine, whose launcher keeps the "
                "memory, found {} machines: save checkpoints instead",
                {world->machines()});
  TRIREME_CHECK(launcher_keeps_memory(),
                "Stale::replicas: expected a launcher that starts lost ranks again (trireme run "
                "--restart N), found none: leave it out");
}

}  // namespace

void check_stale(const Stale& stale,
                 const Optimizer& optimizer,
                 const Communicator& ranks,
                 const World* world) {
  const EngineOptions& engine = stale.engine;
  const bool clock = stale.order == Order::kClock;
  TRIREME_CHECK(stale.bound >= 0 || stale.bound == Stale::kNoBound,
                "Stale::bound: expected a number of steps of 0 or more, or kNoBound, found ",
                stale.bound);
  TRIREME_CHECK(stale.bound != Stale::kNoBound || !clock,
                "Stale::bound: without a bound nobody knows which weights Order::kClock computes "
                "with: give one, or use Order::kArrival");
  TRIREME_CHECK(stale.servers >= 0 && stale.servers < ranks.size(),
                "Stale::servers: expected fewer than the {} ranks, of which at least one must "
                "compute, found {}",
                {ranks.size(), stale.servers});
  TRIREME_CHECK((stale.record.empty() && stale.replay.empty()) || !clock,
                "Stale::record and replay are for Order::kArrival: with Order::kClock the result "
                "is the same without");
  check_replicas(stale, world);
  const auto refuse = [](bool asked, const char* what) {
    TRIREME_CHECK(!asked, "StaleEngine: {}: leave it out, or use Engine", {what});
  };
  refuse(engine.zero == 3, "stage 3 would compute with parameters of several versions");
  refuse(engine.shard_group != ShardGroup::kWorld, "EngineOptions::shard_group divides by machine");
  refuse(!engine.shares.empty(), "EngineOptions::shares: servers say who owns how much");
  refuse(engine.compress != nullptr, "EngineOptions::compress works on the sum of all ranks");
  refuse(engine.round_weights != nullptr,
         "EngineOptions::round_weights: weights go to workers as they are");
  refuse(engine.offload.any(),
         "EngineOptions::offload: owners update what has come, not all of it in order");
  refuse(engine.prune.fraction > 0, "EngineOptions::prune looks at the weights of all owners");
  refuse(static_cast<bool>(engine.gradient_hook),
         "EngineOptions::gradient_hook sums for all ranks");
  refuse(!optimizer.passes().empty(),
         "an optimizer that looks at whole parameters (LAMB, Adafactor) needs all owners at once");
  refuse(stale.servers > 0 && optimizer.takes_whole_parameters(),
         "Stale::servers divide by element, and this optimizer updates whole parameters");
  const int workers = ranks.size() - stale.servers;
  TRIREME_CHECK(engine.micro_batches % workers == 0,
                "EngineOptions::micro_batches: expected a multiple of the {} ranks that compute, "
                "found {}",
                {workers, engine.micro_batches});
  check_elastic("StaleEngine");
}

void check_follows(const Arrivals& arrivals,
                   const std::string& folder,
                   std::int64_t from,
                   std::int64_t steps) {
  TRIREME_CHECK(
      arrivals.first.has_value() && steps > 0,
      "replay: {} has not one whole step of all ranks: the run ended before, and there is "
      "nothing to replay",
      {folder});
  TRIREME_CHECK(arrivals.begins || *arrivals.first <= from,
                "replay: {} begins after step {}, where the run went on with other settings than "
                "before: what came before is not recorded any more",
                {folder, *arrivals.first});
  // One that has come to the end of the record goes on from there with nothing to follow.
  TRIREME_CHECK(arrivals.begins || from == steps,
                "replay: {} says nothing of a beginning after step {}: replay from where it began, "
                "or from where it saved",
                {folder, from});
}

std::vector<std::string> stale_lines(const Stale& stale, const Communicator& ranks) {
  return {concat("bound ", stale.bound),
          concat("order ", stale.order == Order::kClock ? "clock" : "arrival"),
          concat(stale.servers, " servers of ", ranks.size(), " ranks"),
          concat("subject ", stale.subject.empty() ? "none" : stale.subject)};
}

EngineOptions worker_options(const Stale& stale, int workers) {
  EngineOptions options = stale.engine;
  options.zero = 1;
  options.micro_batches /= workers;
  options.sum_order = SumOrder::kChained;
  options.broadcast_buffers = false;
  return options;
}

EngineOptions owner_options(const EngineOptions& worker, int workers, int ranks) {
  EngineOptions options = worker;
  options.zero = 2;  // each owner has sums of its own part
  if (workers < ranks) {
    options.shares.assign(index(ranks), 0);
    std::fill(options.shares.begin() + workers, options.shares.end(), 1.0);
  }
  return options;
}

}  // namespace trireme::detail
