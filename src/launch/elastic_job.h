#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launch/elastic_ranks.h"
#include "launch/epochs.h"
#include "launch/fleet.h"
#include "launch/job_drill.h"
#include "launch/job_event.h"
#include "launch/job_socket.h"
#include "launch/local_ranks.h"
#include "trireme/launch/launcher.h"

namespace trireme::detail {

// An elastic job as the launcher of one machine sees it: its ranks, the decisions about their
// epochs, which the leader makes (machine 0, or whom a store names), and the words between the two.
class ElasticJob {
 public:
  // All outlive it.
  ElasticJob(const LaunchOptions& options,
             LocalRanks& ranks,
             std::function<void(const std::string&)> say);

  // When the machines have met, and before ranks are started, or have met again; null where there
  // is only this one. `reception`: of the leader. `wait`: for machines to come back. `leadership`:
  // of a job with a store. Throws ConfigError where the ranks are not as many as --elastic says.
  void begin(Fleet* fleet,
             std::unique_ptr<Reception> reception,
             Milliseconds wait,
             Leadership* leadership);

  // Of this machine's ranks. False: they end the job.
  bool take_failures(const std::vector<JobEvent>& failures);
  void add_to(std::vector<pollfd>& entries) const;
  // Hears ranks and other launchers, and does what is to be done. What ends the job.
  std::vector<JobEvent> turn();

  // The leader: where `trireme scale` asks, and answering it.
  void open_socket();
  void serve(bool is_ending);
  // As Epochs has them; only the leader scales.
  std::string scale(int ranks, const std::string& who);
  void end_in_good_order();
  bool is_forming() const { return epochs_ && epochs_->is_forming(); }
  bool decides() const { return epochs_.has_value(); }
  // Hears what other launchers say of it, and is told of epochs; outlives this job.
  void set_drill(JobDrill* drill);
  // What it may ask of this job, which outlives it.
  DrillBook::Hands drill_hands();
  // This machine's lease is over, and its ranks have ended. The world that they were in, for
  // whoever decides next; empty: none.
  std::string lose_leader();
  // This machine was asked to end, by this signal: it leaves after the step at hand. False: the job
  // ends with it (Note [handing over] in hand_over.cc).
  bool leave(int signal);
  bool leaves() const { return leaves_; }
  bool has_left() const { return leaves_ && !epochs_; }

 private:
  std::string answer(const std::string& request);
  void decide_here(Milliseconds wait);
  void hear_machines(std::vector<JobEvent>& ends);
  void take_mail(const Fleet::Mail& mail, std::vector<JobEvent>& ends);
  void obey(const Fleet::Mail& mail);
  void let_in();
  void tell_status();
  // Whether the job does; where it decides.
  bool outlives(int machine, const std::vector<JobEvent>& failures);
  void hand_over(std::vector<JobEvent>& ends);
  std::string objection(int machine, const DrillFault& fault) const;
  DrillBook::Hands::Part part_of_world(int machine) const;

  const LaunchOptions& launch_;
  ElasticOptions elastic_;
  LocalRanks& local_;
  ElasticRanks ranks_;
  std::function<void(const std::string&)> say_;
  Fleet* fleet_ = nullptr;
  Leadership* leadership_ = nullptr;
  JobDrill* drill_ = nullptr;
  std::unique_ptr<Reception> reception_;
  std::optional<Epochs> epochs_;     // of the leader
  std::optional<JobSocket> socket_;  // of the leader, where the number of ranks may change
  bool is_ending_ = false;
  MachineStatus told_;               // the last status, to the leader
  std::optional<EpochOrder> world_;  // the last that this machine was in
  std::string handed_over_;          // by the last leader, as it left
  int last_leader_ = -1;
  bool leaves_ = false;
  std::optional<Deadline> handing_over_;  // for as long a leader that leaves waits for the others
};

}  // namespace trireme::detail
