#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <poll.h>

#include "comm/rendezvous/membership_socket.h"
#include "launch/elastic_words.h"
#include "launch/job_event.h"
#include "launch/job_setup.h"
#include "launch/left_behind.h"
#include "launch/output_queue.h"
#include "launch/rank_process.h"
#include "trireme/core/file_descriptor.h"
#include "trireme/launch/launcher.h"

namespace trireme::detail {

// Where the lines of the ranks go, and what the launcher itself has to say.
struct Outlets {
  OutputQueue* output;
  OutputQueue* errors;
  std::function<void(const std::string&)> say;
};

// The ranks that run on this machine: starting them, reading from them, seeing them end.
class LocalRanks {
 public:
  // `options` outlives it.
  LocalRanks(const LaunchOptions& options, Outlets outlets)
      : options_(options), outlets_(std::move(outlets)) {}
  LocalRanks(const LocalRanks&) = delete;
  LocalRanks& operator=(const LocalRanks&) = delete;
  // Ranks that still run are killed: none outlives it.
  ~LocalRanks();

  // Whatever can go wrong without a rank being started. Throws ConfigError.
  void prepare();
  // `listener` is handed to rank 0, where that is here, now or in a later epoch. Throws
  // ConfigError.
  void start(JobIdentity identity, FileDescriptor listener);

  // Before they are started: they inherit this descriptor, and the variable holds its number.
  void share(const std::string& variable, int descriptor) {
    shared_.emplace_back(variable, descriptor);
  }

  // What to wait for, and reading it when it is there; `entries` as add_to has left them.
  void add_to(std::vector<pollfd>& entries);
  void take_output(const std::vector<pollfd>& entries);

  // --- of an elastic job

  // Takes note of who asks for the next epoch, and keeps the memory that it is given.
  void hear_requests();
  // Tells the ranks that the epoch at hand ends after their step, or, `lost`, that it has ended.
  void end_epoch(bool lost, const std::string& why) const;
  // Nobody has a place in another epoch any more.
  void close_memberships();
  // The next epoch: as many of its ranks as are not to be started are processes that asked for it;
  // what is left of these leave. Throws ConfigError.
  void begin_epoch(const EpochOrder& order, int machine);
  // Of the epoch at hand.
  MachineStatus status() const;
  // Whoever is stopped is so from now on.
  void forget_stops();
  const std::vector<RankProcess>& ranks() const { return ranks_; }
  // How far the ranks of this machine have come, in all epochs so far.
  Reached reached() const;
  int world_size() const { return identity_.world_size; }

  // Takes note of who has ended; the failures among them, with the last words.
  std::vector<JobEvent> reap();
  bool all_ended() const;
  // When all have: ends what they started and left running.
  void end_left_behind() const;

  void send_signal(int number) const;
  // Kills all, and returns when they have ended: nothing is left of them but what they kept.
  void end_all();
  // What the ranks do from now on is no failure of theirs.
  void tell_to_end(int number);

  // The process of rank 0 in the epoch at hand; null where it runs on another machine.
  const RankProcess* rank0() const;

 private:
  // Starts the process of a place as this rank.
  RankProcess start_rank(std::size_t place, int rank);
  std::string log_of(std::size_t place) const;
  static void tell(const RankProcess& rank,
                   const std::string& text,
                   const std::vector<int>& descriptors = {});
  void answer(RankProcess& rank, Packet packet);
  void hand_out_memory(RankProcess& rank) const;
  void tell_history(const PulseMemory& pulse) const;
  // Which processes, in order of their ranks, the next epoch has here.
  std::vector<std::size_t> members_of(const EpochOrder& order, int machine) const;
  void label(RankProcess& process) const;
  void open_report_pipe();
  void drain_reports();
  void check_log(int error) const;

  const LaunchOptions& options_;
  Outlets outlets_;
  std::string program_;
  JobIdentity identity_;
  std::optional<LeftBehind> left_behind_;
  std::vector<Placement> placements_;
  std::vector<std::pair<std::string, int>> shared_;
  struct KeptMemory {
    std::int64_t epoch = 0;
    std::int64_t use = 0;
    FileDescriptor memory;
  };
  std::vector<KeptMemory> kept_memory_;
  std::int64_t news_ = 0;     // of memory, so far
  FileDescriptor listener_;   // for rank 0; where the job is not elastic, until that is started
  RankCounts counts_;         // up to the epoch at hand
  RankCounts counts_before_;  // up to the last one
  Reached reached_;           // in those before it
  FileDescriptor report_reader_;
  FileDescriptor report_writer_;
  std::string report_text_;
  std::vector<RankProcess> ranks_;
  bool appends_logs_ = false;    // of ranks that ran here before
  int first_log_ = 0;            // the number of the first log file of this machine
  std::size_t first_entry_ = 0;  // of ours among the entries to poll
};

}  // namespace trireme::detail
