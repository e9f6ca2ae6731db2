#pragma once

#include <cstdint>
#include <vector>

#include "comm/shm/call.h"
#include "comm/shm/matching.h"
#include "comm/shm/station.h"
#include "comm/steps.h"
#include "trireme/core/deadline.h"

namespace trireme::detail {

// Every rank has issued the operation, and all agree about it.
class AllIssued final : public Condition {
 public:
  AllIssued(const Station& station, const Call& call) : station_(station), call_(call) {}
  bool ready() override {
    for (; next_ < station_.size(); ++next_) {
      if (!station_.issued(next_, call_.sequence)) {
        return false;
      }
      check_same_call(station_, call_.sequence, next_);
    }
    return true;
  }
  std::vector<int> missing() override {
    std::vector<int> ranks;
    for (int peer = 0; peer < station_.size(); ++peer) {
      if (!station_.issued(peer, call_.sequence)) {
        ranks.push_back(peer);
      }
    }
    return ranks;
  }

 private:
  const Station& station_;
  const Call& call_;
  int next_ = 0;
};

// Every rank has passed synchronisation point `phase`.
class AllAtPhase final : public Condition {
 public:
  AllAtPhase(const Station& station, std::uint32_t phase) : station_(station), phase_(phase) {}
  bool ready() override {
    while (next_ < station_.size() && station_.at_phase(next_, phase_)) {
      ++next_;
    }
    return next_ == station_.size();
  }
  std::vector<int> missing() override {
    std::vector<int> ranks;
    for (int peer = 0; peer < station_.size(); ++peer) {
      if (!station_.at_phase(peer, phase_)) {
        ranks.push_back(peer);
      }
    }
    return ranks;
  }

 private:
  const Station& station_;
  std::uint32_t phase_;
  int next_ = 0;
};

// What was copied from these peers' memory was theirs to lend all the while. Where it was not, this
// is never so, and whoever waits finds out what has happened, and names it.
class Undisturbed final : public Condition {
 public:
  Undisturbed(const Station& station, std::vector<int> peers)
      : station_(station), peers_(std::move(peers)) {}
  bool ready() override { return peers_.empty() || station_.are_undisturbed(peers_); }
  std::vector<int> missing() override { return peers_; }

 private:
  const Station& station_;
  std::vector<int> peers_;
};

// A peer whose memory could not be read has a while to turn out to be dead, which whoever waits
// finds out and names.
class AliveAfterAll final : public Condition {
 public:
  explicit AliveAfterAll(int peer) : peer_(peer) {}
  bool ready() override { return patience_.passed(); }
  std::vector<int> missing() override { return {peer_}; }

 private:
  int peer_;
  Deadline patience_{Milliseconds(2000)};
};

}  // namespace trireme::detail
