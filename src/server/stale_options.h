#pragma once

#include <string>
#include <vector>

#include "server/arrival_record.h"
#include "trireme/comm/communicator.h"
#include "trireme/comm/world.h"
#include "trireme/optim/optimizer.h"
#include "trireme/server/stale_engine.h"

namespace trireme::detail {

// Throws ConfigError for what a stale engine cannot do, by name.
void check_stale(const Stale& stale,
                 const Optimizer& optimizer,
                 const Communicator& ranks,
                 const World* world);

// Throws ConfigError where a run that has taken `from` steps cannot follow these, of which all
// owners have `steps`.
void check_follows(const Arrivals& arrivals,
                   const std::string& folder,
                   std::int64_t from,
                   std::int64_t steps);

// All that the result depends on beside the engine's own options, a line each.
std::vector<std::string> stale_lines(const Stale& stale, const Communicator& ranks);

// Of the engine that computes one rank's gradients, and of those that own weights.
EngineOptions worker_options(const Stale& stale, int workers);
EngineOptions owner_options(const EngineOptions& worker, int workers, int ranks);

}  // namespace trireme::detail
