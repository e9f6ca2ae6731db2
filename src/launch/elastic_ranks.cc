#include "launch/elastic_ranks.h"

#include <algorithm>

#include <signal.h>

#include "launch/job_setup.h"
#include "trireme/core/error.h"

namespace trireme::detail {
namespace {

// A turn comes at least every half second, unless this process was stopped, or the whole machine.
constexpr std::chrono::seconds kLongestElasticTurn{3};

}  // namespace

void ElasticRanks::end_epoch(const EpochEnd& end) {
  ranks_.end_epoch(end.lost, end.why);
  if (end.lost && !patience_) {
    patience_.emplace(milliseconds_of(options_.stall_seconds));
  }
}

void ElasticRanks::begin_epoch(const EpochOrder& order, int machine) {
  patience_.reset();
  ranks_.begin_epoch(order, machine);
}

std::vector<JobEvent> ElasticRanks::explained(std::vector<JobEvent> failures) const {
  for (JobEvent& failure : failures) {
    failure.stalled = stalled_.contains(failure.pid);
  }
  return failures;
}

void ElasticRanks::turn() {
  ranks_.hear_requests();
  const auto now = std::chrono::steady_clock::now();
  if (now - std::exchange(last_turn_, now) > kLongestElasticTurn) {
    // Nobody else has run, either: they get the time that they were promised.
    ranks_.forget_stops();
    if (patience_) {
      patience_.emplace(milliseconds_of(options_.stall_seconds));
    }
  }
  end_stopped();
  if (patience_ && patience_->passed()) {
    end_stalled();
  }
}

void ElasticRanks::end(const RankProcess& rank, const std::string& why) {
  if (ended_.insert(rank.child.pid).second) {
    say_(concat("rank {} of {} (pid {}) {}: ending it",
                {rank.rank, ranks_.world_size(), rank.child.pid, why}));
  }
  rank.send_signal(SIGKILL);
}

void ElasticRanks::end_stopped() {
  const auto now = std::chrono::steady_clock::now();
  for (const RankProcess& rank : ranks_.ranks()) {
    if (!rank.ended && rank.stopped &&
        now - *rank.stopped > milliseconds_of(options_.heartbeat_seconds)) {
      end(rank, concat("has been stopped for ", options_.heartbeat_seconds, " s"));
    }
  }
}

void ElasticRanks::end_stalled() {
  for (const RankProcess& rank : ranks_.ranks()) {
    if (rank.is_member() && !rank.asks) {
      stalled_.insert(rank.child.pid);
      end(rank,
          concat("has not noticed for ", options_.stall_seconds, " s that its world has ended"));
    }
  }
  patience_.emplace(milliseconds_of(options_.stall_seconds));
}

}  // namespace trireme::detail
