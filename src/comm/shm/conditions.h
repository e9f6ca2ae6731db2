#pragma once

#include <cstdint>
#include <vector>

#include "comm/queue/backend.h"
#include "comm/queue/steps.h"
#include "comm/shm/endpoint.h"
#include "comm/shm/matching.h"
#include "trireme/core/deadline.h"

namespace trireme::detail {

// Every rank has issued the operation, and all agree about it.
class AllIssued final : public Condition {
 public:
  AllIssued(const Endpoint& endpoint, const Call& call)
      : endpoint_(endpoint), sequence_(endpoint.sequence_of(call.number)) {}
  bool ready() override {
    for (; next_ < endpoint_.size(); ++next_) {
      if (!endpoint_.issued(next_, sequence_)) {
        return false;
      }
      check_same_call(endpoint_, sequence_, next_);
    }
    return true;
  }
  std::vector<int> missing() override {
    std::vector<int> ranks;
    for (int peer = 0; peer < endpoint_.size(); ++peer) {
      if (!endpoint_.issued(peer, sequence_)) {
        ranks.push_back(peer);
      }
    }
    return ranks;
  }

 private:
  const Endpoint& endpoint_;
  const std::uint32_t sequence_;
  int next_ = 0;
};

// Every rank has passed synchronisation point `phase`.
class AllAtPhase final : public Condition {
 public:
  AllAtPhase(const Endpoint& endpoint, std::uint32_t phase) : endpoint_(endpoint), phase_(phase) {}
  bool ready() override {
    while (next_ < endpoint_.size() && endpoint_.at_phase(next_, phase_)) {
      ++next_;
    }
    return next_ == endpoint_.size();
  }
  std::vector<int> missing() override {
    std::vector<int> ranks;
    for (int peer = 0; peer < endpoint_.size(); ++peer) {
      if (!endpoint_.at_phase(peer, phase_)) {
        ranks.push_back(peer);
      }
    }
    return ranks;
  }

 private:
  const Endpoint& endpoint_;
  std::uint32_t phase_;
  int next_ = 0;
};

// What was copied from these peers' memory was theirs to lend all the while. Where it was not, this
// is never so, and whoever waits finds out what has happened, and names it.
class Undisturbed final : public Condition {
 public:
  Undisturbed(const Endpoint& endpoint, std::vector<int> peers)
      : endpoint_(endpoint), peers_(std::move(peers)) {}
  bool ready() override { return peers_.empty() || endpoint_.are_undisturbed(peers_); }
  std::vector<int> missing() override { return peers_; }

 private:
  const Endpoint& endpoint_;
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
