#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "launch/elastic_words.h"
#include "launch/job_event.h"
#include "launch/rank_counter.h"
#include "trireme/core/deadline.h"
#include "trireme/launch/launcher.h"

namespace trireme::detail {

// The epochs of an elastic job, decided by the launcher that leads. A loss ends one; the next
// begins when every rank that is left, on every machine, has asked for it, so that nobody who is
// not a member of it still runs. Of a machine that does not answer, see Note [leases] in
// fleet_lease.cc.
class Epochs {
 public:
  // By whom its decisions are carried out, on all machines.
  struct Hands {
    std::function<void(const std::string&)> say;
    std::function<void(const EpochEnd&)> end;
    std::function<void(const EpochOrder&)> begin;  // may throw ConfigError
  };
  // `wait`: how long a job waits that has too few ranks for a machine to come back.
  Epochs(const ElasticOptions& options, Milliseconds wait, Hands hands);

  // A machine with so many ranks in the first epoch, and room for so many; its name is empty where
  // there is only one. `listener`: "HOST:PORT" where a rank 0 there would listen.
  struct Machine {
    std::string name;
    int capacity = 0;
    std::string listener;
    bool present = true;
    bool is_new = false;    // has not been in an epoch since it came
    bool leaves = false;    // has no ranks from the next epoch on
    int started_again = 0;  // ranks, in the next epoch
    int follows = 0;        // of these, that were not lost
    MachineStatus status{};
  };
  void add(Machine machine, int ranks);
  // No rank runs yet, or any more: the first epoch, of this number, is still to begin, when all
  // machines are here, or after `patience` with those that are.
  void take_over(std::int64_t epoch, Milliseconds patience);

  // --- what has happened

  // False: the job does not outlive it.
  bool take(int machine, const std::vector<JobEvent>& failures);
  void take(int machine, const MachineStatus& status);
  void machine_lost(int machine, const std::string& why);
  void machine_came(int machine, Machine now);
  void machine_leaves(int machine);

  // --- of a leader that leaves (Note [handing over] in hand_over.cc)

  // Another machine is here, and stays, so that this one may leave.
  bool can_do_without(int machine) const;
  // The epoch at hand is this leader's last.
  void begin_to_hand_over(int machine);
  // It stays after all.
  void stay(int machine) { machines_[static_cast<std::size_t>(machine)].leaves = false; }
  // The epoch at hand has ended, and all its ranks wait for the next.
  bool is_at_rest() const { return forming_ && is_ready() && !finished_; }
  // For the next leader, which does not know.
  Rest rest() const;

  // Begins the next epoch when it can. Why the job cannot go on; empty: it does.
  std::string turn();
  // Has so many ranks from the next epoch on, which begins after the step at hand, because `who`
  // asks for it. What will happen, or "no: " and why not.
  std::string scale(int ranks, const std::string& who);
  // The job was asked to end: ranks that meet anew do so to end together, and none is started.
  void end_in_good_order();
  // Ranks are still to be started, or machines to come.
  bool is_forming() const { return forming_; }
  // Every rank has come to its end.
  bool is_complete() const { return !forming_ && members() == 0; }
  int world_size() const { return world_size_; }
  std::int64_t epoch() const { return epoch_; }
  const std::vector<Machine>& machines() const { return machines_; }
  RankCounter& counter() { return counter_; }

 private:
  struct Failed {
    int machine;
    JobEvent failure;
  };

  bool outlives(const Failed& failed, bool follows);
  void end_epoch(bool lost, const std::string& why);
  int members() const;   // that run
  int capacity() const;  // of the machines that are here
  bool any(bool MachineStatus::*flag) const;
  bool any(bool Machine::*flag) const;
  int started_again() const;
  bool is_ready() const;
  std::vector<int> ranks_of_next() const;
  // Whether to wait for a machine that may come back; `why` the job ends otherwise.
  bool waits_for_machines(const std::string& why);
  std::string why_too_few() const;
  std::string too_few(int left) const;  // in words
  void begin();
  std::string name_of(int machine) const;  // "machine 1 (host): "

  const ElasticOptions options_;
  const Milliseconds wait_;
  const Hands hands_;
  std::vector<Machine> machines_;
  RankCounter counter_;
  std::vector<Failed> held_;  // who blame another, of whose loss nothing is known yet
  std::int64_t epoch_ = 0;
  std::int64_t kept_ = 0;  // news of memory, of all machines
  int world_size_ = 0;
  int restarts_left_;
  int losses_ = 0;                       // in this epoch
  int vain_epochs_ = 0;                  // in a row, that ended without a loss and kept nothing
  std::optional<int> wanted_;            // ranks, from the next epoch on
  bool ends_ = false;                    // it was asked to
  bool forming_ = false;                 // this epoch has ended, or is to end
  std::string why_;                      // it does
  std::string who_comes_;                // "machine 1 (host) joins the job", of the last one
  bool lost_ = false;                    // and whoever waits in it was told
  std::optional<Deadline> unexplained_;  // a rank has lost another, and nobody has said why
  bool finished_ = false;                // a rank of this epoch has come to its end: the job has
  std::optional<Deadline> waiting_;      // for machines to come back
  std::optional<Deadline> gathering_;    // before the first epoch of one that has taken over
};

}  // namespace trireme::detail
