#pragma once

#include <atomic>
#include <cstdint>

#include "trireme/core/pulse.h"

// What became of the ranks of an elastic job so far. Its launchers know who was lost, who left in
// good order and who was only started again, and tell each new world; ranks know the steps.

namespace trireme {

// From the beginning of the job on. A rank that is started in the place of a lost one has joined;
// one that is started again because others were lost, or because another launcher decides, has not.
struct RankCounts {
  std::int64_t times = 0;  // that ranks met anew
  std::int64_t lost = 0;
  std::int64_t left = 0;
  std::int64_t joined = 0;

  bool operator==(const RankCounts&) const = default;
};

// In the page that a rank shares with its launcher.
struct WorldHistory {
  // Written by the launcher while no world is: up to the world at hand, and up to the last one.
  RankCounts told{};
  RankCounts before{};
  // The furthest step that any rank has begun, and how often one was begun that had been; by the
  // launcher, too, and then by the rank.
  std::atomic<std::int64_t> begun{0};
  std::atomic<std::int64_t> again{0};
};
static_assert(sizeof(WorldHistory) <= sizeof(PulsePage::later));

namespace detail {

// Zeros where the page is of a program that knows nothing of it.
inline WorldHistory& history_in(PulsePage& page) {
  return *reinterpret_cast<WorldHistory*>(page.later);
}
inline const WorldHistory& history_in(const PulsePage& page) {
  return *reinterpret_cast<const WorldHistory*>(page.later);
}

// This rank begins a step: counted from 1, and different for each step of the job.
inline void begin_step(std::int64_t step) {
  WorldHistory& history = history_in(pulse());
  if (step > history.begun.load()) {
    history.begun.store(step);
  } else {
    history.again.fetch_add(1);
  }
}

}  // namespace detail
}  // namespace trireme
