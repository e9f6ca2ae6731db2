// For how long the machines of an elastic job may run their ranks.

#include <algorithm>

#include "comm/rendezvous/packing.h"
#include "launch/fleet.h"
#include "trireme/core/error.h"
#include "trireme/core/index.h"

namespace trireme::detail {
namespace {

constexpr Milliseconds kHeartbeat{1000};
// Beside an eighth of it, for clocks that run a little faster or slower.
constexpr Milliseconds kBeyondLease{500};

}  // namespace

// Note [leases]
// Before an elastic job goes on without a machine, that machine's ranks must have ended, and nobody
// can tell whether they have where the network is cut. So a machine runs its ranks on a lease: its
// heartbeats carry the time by its own clock, the leader's carry back the newest that it has got,
// and when that is older than the lease, the machine kills its ranks. The leader waits for as long,
// and a little longer, since it last got one: whatever it sent back since then was older. Nothing
// is assumed but that clocks of different machines run about as fast.
//
// With a store the leader has a lease, too (Note [leading] in leadership.h), and others must not
// run their ranks for longer than it leads. So its answers also say how much of that is left, if it
// is less, which is not more than that from the time that the answer carries.
void Fleet::lease(Milliseconds limit, const Leadership* leadership) {
  lease_ = limit;
  leadership_ = leadership;
  leased_until_ = LeaseClock::now() + limit;
  silence_limit_ = limit;
  lost_limit_ = limit + limit / 8 + kBeyondLease;
}

// A machine that was cut off, or whose launcher was started again, may be here before the end of
// its old connection is, and after words that had been on their way.
bool Fleet::is_here_for_sure(int machine) {
  Peer& peer = peers_[index(machine)];
  const auto now = Clock::now();
  if (now - peer.last_claim > *lease_ + kHeartbeat) {
    peer.claimed = now;  // a new one
  }
  peer.last_claim = now;
  return peer.heard - peer.claimed > *lease_;
}

bool Fleet::lease_is_over() const {
  if (!lease_ || finished_ || over_) {
    return false;
  }
  return leaderless_ || (is_host() ? leadership_ != nullptr && lead_left().count() == 0
                                   : LeaseClock::now() > leased_until_);
}

// At most the lease of a machine.
Milliseconds Fleet::lead_left() const {
  if (leadership_ == nullptr) {
    return lease_.value_or(Milliseconds(0));
  }
  const auto left = leadership_->leads_until() - LeaseClock::now();
  return std::clamp(std::chrono::duration_cast<Milliseconds>(left), Milliseconds(0), *lease_);
}

bool Fleet::leads_for_a_lease() const {
  return lead_left() == lease_;
}

Milliseconds Fleet::beat_period() const {
  return lease_ ? std::min(kHeartbeat, *lease_ / 8) : kHeartbeat;
}

void Fleet::beat() {
  if (Clock::now() - last_heartbeat_ < beat_period()) {
    return;
  }
  last_heartbeat_ = Clock::now();
  for (std::size_t machine = 0; machine < peers_.size(); ++machine) {
    const std::int64_t now = LeaseClock::now().time_since_epoch().count();
    say(*roster_.links[machine],
        LauncherWord::kHeartbeat,
        Packer()
            .number(is_host() ? peers_[machine].stamp : now)
            .number(lead_left().count())
            .take());
  }
}

std::string Fleet::why_lease_is_over() const {
  if (is_host()) {
    const std::string trouble = leadership_->view().trouble;
    return concat(
        "this machine could not renew its lead in the store{}, so that another may lead "
        "the job",
        {trouble.empty() ? "" : concat(" (", trouble, ")")});
  }
  if (handed_over_) {
    return concat(roster_.name_of(roster_.leader), " leaves the job, and another is to lead it");
  }
  if (leaderless_) {
    return concat(roster_.name_of(roster_.leader),
                  ", which led the job, has hung up; another machine is to lead it");
  }
  const double seconds = std::chrono::duration<double>(*lease_).count();
  return concat(
      "{} has not been heard from for {} s, so that the others may go on without this machine",
      {roster_.name_of(roster_.leader), seconds});
}

}  // namespace trireme::detail
