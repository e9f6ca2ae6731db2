// A machine of an elastic job that is asked to end, and how its lead goes to another.

#include <signal.h>

#include "launch/elastic_job.h"
#include "launch/job_setup.h"
#include "trireme/core/index.h"

namespace trireme::detail {
namespace {

// Beyond --grace, for the ranks of others to notice that those of this machine were ended.
constexpr Milliseconds kTimeToRest{3000};

}  // namespace

// Note [handing over]
// A leader that a store has named leaves like any machine: the epoch at hand ends after the step at
// hand, with what its ranks have kept copied to another machine. When every rank waits for the next
// epoch, nobody trains, so the lead can go to another before its lease is over: the leader begins
// no epoch, takes its name out of the store and says so. The others end the ranks that wait, elect
// one of them, and go on with the step after. Where ranks do not come to rest within --grace, those
// of this machine are killed, and should that not help, the lease is left to run out.
//
// The job ends with its leader where there is no store, where every other machine is gone or leaves
// as well, and on Ctrl-C, which is meant for the job and not for the machine.
bool ElasticJob::leave(int signal) {
  if (!epochs_) {
    leaves_ = true;
    fleet_->send(fleet_->roster().leader, LauncherWord::kLeave, "");
    return true;
  }
  if (signal != SIGTERM || leadership_ == nullptr || !epochs_->can_do_without(launch_.node_rank)) {
    return false;
  }
  leaves_ = true;
  handing_over_.emplace(milliseconds_of(elastic_.grace_seconds) + kTimeToRest);
  epochs_->begin_to_hand_over(launch_.node_rank);
  return true;
}

void ElasticJob::hand_over(std::vector<JobEvent>& ends) {
  const bool rests = epochs_->is_at_rest();
  if (rests && !epochs_->can_do_without(launch_.node_rank)) {
    say_("no other machine stays, to which the lead could go: the job ends");
    leaves_ = false;
    epochs_->stay(launch_.node_rank);
    ends.push_back(event_of(JobEvent::Kind::kStopped, launch_.node_rank, "", SIGTERM));
    return;
  }
  if (drill_ != nullptr) {
    drill_->hand_over();
  }
  leadership_->hand_over(rests);
  fleet_->broadcast(LauncherWord::kHandOver, rests ? pack_rest(epochs_->rest()) : "");
  epochs_.reset();
  socket_.reset();
  reception_.reset();
  say_("this machine has left the job, which another is to lead");
}

bool Epochs::can_do_without(int machine) const {
  bool another = false;
  for (std::size_t i = 0; i < machines_.size(); ++i) {
    another |= i != index(machine) && machines_[i].present && !machines_[i].leaves;
  }
  return another && !ends_ && !finished_;
}

Rest Epochs::rest() const {
  Rest rest = counter_.rest();
  for (const Machine& machine : machines_) {
    rest.ranks.push_back(machine.status.members + machine.follows);
  }
  return rest;
}

void Epochs::begin_to_hand_over(int machine) {
  machine_leaves(machine);
  const bool keeps = any(&MachineStatus::keeps);
  end_epoch(!keeps,
            concat(machines_[index(machine)].name, " leaves"));  // also where it has no ranks
}

}  // namespace trireme::detail
