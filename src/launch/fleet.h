#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <poll.h>

#include "launch/fleet_meeting.h"
#include "launch/job_event.h"
#include "launch/leadership.h"
#include "trireme/core/deadline.h"

namespace trireme::detail {

// The launchers of a job's machines while it runs, as one of them sees the others. What ends the
// job goes to the leader (machine 0, or whom a store names), which puts it in order and tells all;
// so all name the same cause. Every launcher says once a second that it is alive. Never blocks, but
// for `farewell`.
class Fleet {
 public:
  // `timeout` is the deadline of every wait inside the job; `patience` the time the others have for
  // ending their ranks.
  Fleet(Roster roster, Milliseconds timeout, Milliseconds patience);

  const Roster& roster() const { return roster_; }

  // --- to be called in every turn of the launcher's loop
  void add_to(std::vector<pollfd>& entries) const;
  // Reads what has come, passes it on, and looks who is silent.
  void turn();
  // New since the last call, to be printed.
  std::vector<std::string> take_remarks();

  // --- what this machine has to say
  void tell(JobEvent event);
  // All ranks of this machine have ended.
  void done();
  // Do not wait for the others any longer.
  void give_up_waiting() { impatient_ = true; }

  // --- what is known
  // In the order of the leader; what it has not seen yet comes last.
  std::vector<JobEvent> events() const;
  // Something has happened that ends the job.
  bool is_ending() const { return !events_.empty() || !unseen_.empty(); }
  // Another machine was stopped by this signal; 0 where none was.
  int stopped_by() const;
  // The machines that are not heard of now, "machine 1 (host) has not been heard of for 7 s".
  std::vector<std::string> silent_machines() const;
  // Nothing more will be heard that matters: this launcher may end.
  bool is_over() const { return over_; }

  // --- of an elastic job (Note [leases])

  // From now on a machine that is lost does not end the job, and takes its ranks along at the
  // latest when it has not been heard of for this long. `leadership`, which outlives this, of a job
  // with a store: the leader is lost like any other machine.
  void lease(Milliseconds limit, const Leadership* leadership);
  // The leader: for long enough that others may start ranks, who have a whole lease at first.
  bool leads_for_a_lease() const;
  // A turn at least this often.
  Milliseconds beat_period() const;
  // This machine has not been heard of, or has lost its leader or its lead: its ranks must not run
  // any longer.
  bool lease_is_over() const;
  std::string why_lease_is_over() const;
  // What the leader has said as it left; not set: it has not.
  const std::optional<std::string>& handed_over() const { return handed_over_; }
  // The leader: those that are lost since the last call, and why.
  std::vector<JobEvent> take_departures() { return std::exchange(departures_, {}); }
  // What was said beside what a fleet itself needs, since the last call.
  struct Mail {
    int machine;
    LauncherMessage message;
  };
  std::vector<Mail> take_mail() { return std::exchange(mail_, {}); }
  void send(int machine, LauncherWord kind, const std::string& body) {
    say(*roster_.links[static_cast<std::size_t>(machine)], kind, body);
  }
  void broadcast(LauncherWord kind, const std::string& body);
  bool is_connected(int machine) const {
    return roster_.links[static_cast<std::size_t>(machine)]->open();
  }
  // The leader, while another comes for the place of a machine that is connected: it lives, and is
  // not the one that comes. That takes a lease to tell, in which it must not fall silent.
  bool is_here_for_sure(int machine);
  // The leader: all ranks have come to their ends, as far as that is known of an elastic job.
  void set_complete(bool is) { complete_ = is; }
  // The leader: a machine has come (back).
  void admit(int machine, const std::string& host, std::unique_ptr<Link> link);
  // The ranks of the machines, from the next epoch on; those that have any are not done.
  void set_ranks(const std::vector<int>& ranks);
  // The leader: what another has told, and ends the job.
  void record_of(int machine, JobEvent event);

  // Sends what is left to send, a second at most.
  void farewell();

 private:
  struct Peer {
    Clock::time_point heard = Clock::now();  // of peers with a link: the last message
    bool silent = false;
    bool done = false;
    bool gone = false;
    bool lost = false;
    std::int64_t stamp = 0;  // of its last heartbeat, by its own clock of leases
    // Since when, and when last, another has come for its place.
    Clock::time_point claimed{};
    Clock::time_point last_claim{};
  };

  bool is_host() const { return roster_.machine == roster_.leader; }
  Link& leader_link() { return *roster_.links[static_cast<std::size_t>(roster_.leader)]; }
  Milliseconds lead_left() const;
  void read_from(int machine);
  void take(int machine, const LauncherMessage& message);
  void take_silence(const LauncherMessage& message);
  void record(const JobEvent& event);
  void heard_of(int machine);
  void beat();
  void depart(int machine, JobEvent event);
  void watch_silence(int machine);
  void say_silent(int machine, bool silent);
  void decide_whether_over();
  bool everyone_is_done() const;
  double seconds_since(int machine) const;

  Roster roster_;
  Milliseconds silence_limit_;
  Milliseconds lost_limit_;
  Milliseconds patience_;
  std::vector<Peer> peers_;
  std::vector<JobEvent> events_;
  std::vector<JobEvent> unseen_;  // ours, that the leader has not put in order yet
  std::vector<std::string> remarks_;
  std::vector<JobEvent> departures_;
  std::vector<Mail> mail_;
  std::optional<Milliseconds> lease_;
  bool complete_ = false;
  const Leadership* leadership_ = nullptr;
  LeaseClock::time_point leased_until_{};   // of this machine, where it does not lead
  bool leaderless_ = false;                 // with a store: the leader has hung up
  std::optional<std::string> handed_over_;  // and has said that it would
  Clock::time_point last_heartbeat_ = Clock::now();
  std::optional<Deadline> waiting_;  // for the others, after the end has begun
  bool impatient_ = false;
  bool finished_ = false;  // the leader has said so
  bool over_ = false;
};

}  // namespace trireme::detail
