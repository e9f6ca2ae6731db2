#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/flight_recorder.h"
#include "comm/shm/collectives.h"
#include "comm/shm/messages.h"
#include "comm/shm/station.h"
#include "trireme/comm/communicator.h"
#include "trireme/comm/work.h"
#include "trireme/core/deadline.h"
#include "trireme/core/error.h"

namespace trireme::detail {

struct ProgressOptions {
  Milliseconds timeout{0};
  bool helper_thread = false;
  FlightFolder flight_folder;
  // A part of a larger communicator, which writes the records and reports the failure.
  bool quiet = false;
};

// Runs the operations of one rank: keeps them in order, advances them from whatever thread waits,
// puts a thread to sleep when nothing can be done, and ends everything when a peer is lost, calls
// something else, or a deadline passes.
class Progress : public std::enable_shared_from_this<Progress> {
 public:
  Progress(Membership membership, ProgressOptions options);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();

  void start_helper();
  // Stops the helper and drops what is in flight.
  void close();

  Station& station() { return station_; }
  const ProgressOptions& options() const { return options_; }

  Work issue(Operation operation);
  // On every rank; where it has not ended yet.
  void end(const CommError& error);
  CommUse use() const;

 private:
  // Adds the time that a caller spends in here to the books.
  class Timer;

  struct Pending;
  using Queue = std::deque<std::shared_ptr<Pending>>;

  // What a thread waits for. Its functions are called under the mutex.
  class Goal {
   public:
    virtual ~Goal() = default;
    virtual bool reached() = 0;
    virtual std::vector<int> missing() = 0;  // the ranks that could bring it about
    virtual Pending* stuck() = 0;            // the operation that is in the way; null for none
  };
  class Completion;  // of one operation
  class FreeSlot;    // for one more operation
  class Idleness;    // nothing in flight; what the helper waits for

  void wait(Pending& pending, Milliseconds timeout);
  bool poll(Pending& pending);
  std::vector<int> missing(Pending& pending);
  void run_until(Goal& goal, Milliseconds timeout, std::uint32_t sleeper_mark);

  // All below are called under the mutex.
  bool advance();
  bool advance_head(Queue& queue);
  void throw_if_failed() const;
  Queue& queue_of(const Pending& pending);
  std::vector<Pending*> heads();
  void check_for_abort();
  // Looks after everything that can end a wait badly, at most every few milliseconds.
  void check(Goal& goal, const Deadline& deadline);
  void check_peers(Goal& goal);
  [[noreturn]] void fail(CommError::Reason reason,
                         int blamed,
                         const std::string& what,
                         Pending* stuck);
  void record_failure(const CommError& error);
  void write_summary(const std::string& message) const;
  void helper_loop();

  std::atomic<std::int64_t> operations_{0};
  std::atomic<std::int64_t> bytes_{0};
  std::atomic<std::int64_t> nanoseconds_{0};

  const ProgressOptions options_;
  Station station_;

  std::mutex mutex_;
  std::condition_variable helper_wake_;
  // Guarded by mutex_:
  Collectives collectives_;
  Messages messages_;
  FlightRecorder recorder_;
  Queue queue_;                 // collectives, in order
  std::map<int, Queue> sends_;  // by peer, each in order
  std::map<int, Queue> recvs_;
  std::uint64_t issued_ = 0;  // collectives
  Clock::time_point last_check_ = Clock::now();
  std::optional<CommError> failure_;
  bool closing_ = false;

  std::thread helper_;
};

}  // namespace trireme::detail
