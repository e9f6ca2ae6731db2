#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/flight_recorder.h"
#include "comm/steps.h"
#include "trireme/comm/communicator.h"
#include "trireme/comm/work.h"
#include "trireme/core/deadline.h"
#include "trireme/core/error.h"

namespace trireme::detail {

// What the operations of a queue run on.
class QueueHost {
 public:
  virtual ~QueueHost() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Moves data; true if something moved.
  virtual bool pump() = 0;
  // Nothing can be done: waits a little, at most `most`.
  virtual void rest(Milliseconds most) = 0;
  // Ends the rest of another thread, where it may be a long one. Called from any thread.
  virtual void wake() {}
  // Why the wait for `missing` is in vain, where it is. What has come before a rank was lost has
  // been looked at.
  virtual std::optional<CommError> loss(const std::vector<int>& missing) = 0;
  // Patience beyond the deadline: a rank of this machine may itself wait for another machine, and
  // is about to say so.
  virtual Milliseconds grace(const std::vector<int>& /*missing*/) { return Milliseconds(0); }
  // "rank 2 (pid 4711 on machine 1, node-b)".
  virtual std::string name(int rank) const = 0;
  // What the ranks did last, as far as this one knows; for messages.
  virtual std::string last_operations() const = 0;
  // This rank has failed: tells the others, who would wait for it.
  virtual void spread(const CommError& error) = 0;
};

struct QueueOptions {
  Milliseconds timeout{0};
  FlightFolder flight_folder;
  bool oversubscribed = false;
  bool helper_thread = false;  // InitOptions::progress_thread
  // A part of a larger communicator, whose rank is already writing the flight record.
  bool quiet = false;
};

// Runs the operations of one rank that are not in shared memory: keeps them in order, advances them
// from whatever thread waits, and ends everything when a peer is lost or a deadline passes. (What
// shm/progress.h is for a machine, whose waits and failures go through shared memory.)
class OperationQueue : public std::enable_shared_from_this<OperationQueue> {
 public:
  OperationQueue(QueueHost& host, QueueOptions options);
  OperationQueue(const OperationQueue&) = delete;
  OperationQueue& operator=(const OperationQueue&) = delete;
  ~OperationQueue();

  void start_helper();
  // Drops what is in flight; the host is about to end. False where something was, or had failed.
  bool close();

  // One more operation. `start` is called under the lock with its number (collectives from 1, 0 for
  // send and recv) and may already send; it returns the steps from there to the result.
  using Start = std::function<Steps(const Operation& operation, std::uint32_t sequence)>;
  Work issue(Operation operation, const Start& start);
  void abort(const std::string& reason);
  // Ends everything with an error that a part of the communicator has met, here and on the other
  // ranks, and throws what has ended the world: the part may only have ended because of that.
  [[noreturn]] void fail_with(const CommError& error);
  // For somebody who has lost a rank by another way: looks for what has ended the world, for at
  // most `patience`, and ends everything with it. That rank may only have ended because another is
  // lost.
  std::optional<CommError> find_failure(Milliseconds patience);

  CommUse use() const;
  const QueueOptions& options() const { return options_; }
  std::uint32_t completed() const { return completed_; }

 private:
  struct Pending;
  using Queue = std::deque<std::shared_ptr<Pending>>;

  void wait(Pending& pending, Milliseconds timeout);
  bool poll(Pending& pending);
  // Time that the caller has spent here.
  void took(Clock::time_point begin, Clock::time_point end);
  std::vector<int> missing(Pending& pending);

  using Lock = std::unique_lock<std::mutex>;
  // See Note [turns].
  Lock enter();
  void let_others_in(Lock& lock);

  // All below are called under the mutex.
  bool advance();
  bool advance_head(Queue& queue);
  void throw_if_failed() const;
  Queue& queue_of(const Pending& pending);
  void check(Pending& pending, const Deadline& deadline);
  [[noreturn]] void fail(const CommError& error, const Pending* stuck, bool spread);
  // For an error that may have another one behind it: what another rank has told of is older.
  [[noreturn]] void fail_unless_told(const CommError& error, const Pending* stuck);
  bool anything_pending() const;

  void helper_loop();

  QueueHost& host_;
  const QueueOptions options_;
  std::atomic<std::int64_t> operations_{0};
  std::atomic<std::int64_t> bytes_{0};
  std::atomic<std::int64_t> nanoseconds_{0};

  std::mutex mutex_;
  std::atomic<int> comers_{0};             // threads that wait for the mutex
  std::atomic<std::uint32_t> entered_{0};  // how often one of them has got it
  std::atomic<bool> closing_{false};       // set under the mutex
  // Guarded by mutex_:
  Queue queue_;                 // collectives
  std::map<int, Queue> sends_;  // by peer
  std::map<int, Queue> recvs_;
  std::uint32_t issued_ = 0;
  std::atomic<std::uint32_t> completed_{0};
  FlightRecorder recorder_;
  std::optional<CommError> failure_;
  Clock::time_point last_check_{};
  std::condition_variable helper_wake_;
  std::thread helper_;
};

}  // namespace trireme::detail
