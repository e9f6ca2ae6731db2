#pragma once

#include <cstdint>

#include "trireme/comm/world.h"
#include "trireme/core/error.h"
#include "trireme/train/trainer.h"

// How often the ranks of an elastic job change while it trains, and what that costs. A rank that is
// lost tells nobody; those that outlive it remember the world in which they were together.

namespace trireme::detail {

// The step that this process has begun; 0: none.
void remember_step(std::int64_t step);

// Why this process's world ends: after the step at hand, so that ranks can leave or join, or since
// one was lost.
void remember_end(const CommError& error);

// What is known of the world after which this one came: what is kept in memory, or in the
// checkpoint that the run goes on from.
struct KeptWorld {
  RankChanges changes{};  // up to then
  int ranks = 0;          // that kept it; 0: nothing was kept
  std::int64_t step = 0;  // after which the run goes on
};

// With the change that this world came from, where it is the first time that this is asked in it.
// Outside of an elastic job, what was kept. Collective.
RankChanges changes_up_to(World& world, const KeptWorld& kept);

}  // namespace trireme::detail
