#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <poll.h>

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
  // `rank0_listener` is handed to rank 0, where that is here. Throws ConfigError.
  void start(JobIdentity identity, FileDescriptor rank0_listener);

  // What to wait for, and reading it when it is there; `entries` as add_to has left them.
  void add_to(std::vector<pollfd>& entries);
  void take_output(const std::vector<pollfd>& entries);

  // Takes note of who has ended; the failures among them, with the last words.
  std::vector<JobEvent> reap();
  bool all_ended() const;
  // When all have: ends what they started and left running.
  void end_left_behind() const;

  void send_signal(int number) const;
  // What the ranks do from now on is no failure of theirs.
  void tell_to_end(int number);

  // The process of rank 0; null where it runs on another machine.
  const RankProcess* rank0() const;

 private:
  int rank_at(std::size_t i) const { return identity_.first_rank + static_cast<int>(i); }
  LinePrinter printer(OutputQueue& output, int rank) const;
  void open_report_pipe();
  void drain_reports();
  void check_log(int error) const;

  const LaunchOptions& options_;
  Outlets outlets_;
  std::string program_;
  JobIdentity identity_;
  std::optional<LeftBehind> left_behind_;
  FileDescriptor report_reader_;
  FileDescriptor report_writer_;
  std::string report_text_;
  std::vector<RankProcess> ranks_;
  std::size_t first_entry_ = 0;  // of ours among the entries to poll
};

}  // namespace trireme::detail
