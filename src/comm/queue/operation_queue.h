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

#include <sys/types.h>

#include "comm/queue/backend.h"
#include "comm/queue/flight_recorder.h"
#include "comm/queue/turns.h"
#include "trireme/comm/communicator.h"
#include "trireme/comm/work.h"
#include "trireme/core/deadline.h"
#include "trireme/core/error.h"

namespace trireme::detail {

class OperationQueue;

// The queues of one rank's communicators of a world: while a thread waits in one of them, the
// others go on as well. A peer may be in another communicator, waiting for this rank's part there.
class QueueFamily {
 public:
  void add(OperationQueue* queue);
  void remove(OperationQueue* queue);
  // Advances all but `self`, whose lock is held, where no other thread does so. True if any of them
  // has something in flight.
  bool advance_others(OperationQueue& self);

 private:
  std::atomic<int> count_{0};
  std::mutex mutex_;
  std::vector<OperationQueue*> queues_;  // guarded by mutex_
};

// What has ended a communicator, for those that end with it: may be asked under any lock, and when
// the communicator is gone.
class Ending {
 public:
  void set(const CommError& failure) {
    const std::lock_guard lock(mutex_);
    if (!failure_) {
      failure_ = failure;
    }
  }
  std::optional<CommError> get() const {
    const std::lock_guard lock(mutex_);
    return failure_;
  }

 private:
  mutable std::mutex mutex_;
  std::optional<CommError> failure_;  // guarded by mutex_
};

// A process that ends through exit() without destroying its communicators has still left in good
// order: these are closed then.
void close_at_exit(OperationQueue* queue);
void do_not_close_at_exit(OperationQueue* queue);

struct QueueOptions {
  Milliseconds timeout{0};
  FlightFolder flight_folder;
  // How often a thread looks before it rests: by itself, and after giving others the processor.
  int spins = 2000;
  int yields = 20;
  bool helper_thread = false;  // InitOptions::progress_thread
  // The communicator of a machine, whose world writes the records and reports the failure.
  bool quiet = false;
  // A part of another communicator, which is quiet, and whose errors are told in that one's words.
  bool part = false;
  std::string group;  // of communicators that `split` has made: its name; for records
  // That a rank is lost, and why, as far as the launcher knows; not set: it says nothing of that.
  std::function<std::optional<std::string>()> lost;
  std::shared_ptr<Turns> turns = std::make_shared<Turns>();
  std::shared_ptr<QueueFamily> family = std::make_shared<QueueFamily>();
};

// Runs the operations of one rank in one communicator: keeps them in order, advances them from
// whatever thread waits, puts a thread to rest when nothing can be done, and ends everything when a
// peer is lost, calls something else, or a deadline passes.
class OperationQueue : public std::enable_shared_from_this<OperationQueue> {
 public:
  OperationQueue(std::unique_ptr<Backend> backend, QueueOptions options);
  OperationQueue(const OperationQueue&) = delete;
  OperationQueue& operator=(const OperationQueue&) = delete;
  ~OperationQueue();

  // It ends when `parent` does, where its ranks have the numbers `ranks`, and when those do that
  // the parent ends with. Before anything is issued; nothing for a null parent.
  void end_with(const std::shared_ptr<OperationQueue>& parent, const std::vector<int>& ranks);
  // What its user calls before and after everything else. `close` drops what is in flight.
  void open();
  void close();

  Backend& backend() { return *backend_; }
  const QueueOptions& options() const { return options_; }

  Work issue(Operation operation);
  // Ends everything, here and on the other ranks, and returns what has ended it: another failure
  // where that came first.
  CommError end(const CommError& error);
  // For somebody who has lost a rank by another way: looks for what has ended the communicator, for
  // at most `patience`, and ends everything with it. That rank may only have ended because another
  // is lost.
  std::optional<CommError> find_failure(Milliseconds patience);

  // Until one of them, which this queue has issued, is finished, or `most` has passed.
  std::optional<std::size_t> wait_any(const std::vector<WorkState*>& works, Milliseconds most);

  CommUse use() const;
  std::uint64_t completed() const { return completed_; }

 private:
  friend class QueueFamily;
  class Timer;
  class Waiter;
  struct Pending;
  using Queue = std::deque<std::shared_ptr<Pending>>;
  using Lock = Turns::Lock;

  // What a thread waits for. Its functions are called under the lock.
  class Goal {
   public:
    virtual ~Goal() = default;
    virtual bool reached() = 0;
    virtual std::vector<int> missing() = 0;  // the ranks that could bring it about
    virtual Pending* stuck() = 0;            // the operation that is in the way; null for none
    virtual bool is_room() const { return false; }
    // Nobody waits for it: the rank does something else meanwhile.
    virtual bool is_helpers() const { return false; }
  };
  class Completion;  // of one operation
  class AnyCompletion;
  class Room;      // for one more collective
  class Idleness;  // nothing for the helper to do

  void wait(Pending& pending, Milliseconds timeout);
  bool poll(Pending& pending);
  std::vector<int> missing(Pending& pending);
  void run_until(Goal& goal, Milliseconds timeout, Clock::time_point begin);
  void helper_loop();

  Lock enter();
  // All below are called under the lock.
  bool advance();
  bool advance(Queue& queue);
  static bool may_begin(const Pending& pending, const Queue& queue, std::ptrdiff_t before);
  bool advance(Pending& pending, bool at_head);
  [[noreturn]] void fail_with(const std::exception_ptr& failure, const Pending& pending);
  void finish_head(Queue& queue);
  void read_news();
  void rest(Lock& lock, Goal& goal, bool others_busy);
  Queue& queue_of(const Pending& pending);
  std::vector<Pending*> heads();
  // Something is in flight, and nobody waits who would advance it.
  bool needs_helper() { return !closed_ && !failure_ && waiters_ == 0 && !heads().empty(); }
  void drop_all();
  // Looks after everything that can end a wait badly, at most every few milliseconds.
  void say_waits_for(const std::vector<int>& missing);
  void check(Goal& goal, const Deadline& deadline, bool look_at_ancestors);
  // Throws what has ended one of those that it ends with. `looks`: also where that is not known
  // there yet.
  void check_ancestors(bool looks);
  // What has ended this one, for others than its users, who hold `held`; nothing where another
  // thread is in here.
  std::optional<CommError> look_for_failure(const Turns& held);
  void throw_if_failed() const;
  void throw_if_told();
  // What may be behind an error that an operation has met: what another rank has told of is older.
  CommError cause_of(const CommError& error);
  [[noreturn]] void fail(const CommError& error, const Pending* stuck);
  void record_failure(const CommError& error);

  const std::unique_ptr<Backend> backend_;
  const QueueOptions options_;
  const std::shared_ptr<Turns> turns_;
  const pid_t owner_;  // the process that built it
  const std::shared_ptr<Ending> ending_ = std::make_shared<Ending>();
  // What it ends with, and its own ranks' numbers there.
  struct Ancestor {
    std::weak_ptr<OperationQueue> queue;
    std::shared_ptr<const Ending> ending;
    std::vector<int> ranks;
  };
  std::vector<Ancestor> ancestors_;
  std::atomic<std::int64_t> operations_{0};
  std::atomic<std::int64_t> bytes_{0};
  std::atomic<std::int64_t> nanoseconds_{0};
  std::atomic<std::uint64_t> completed_{0};

  // Guarded by turns_:
  bool closed_ = false;
  int waiters_ = 0;             // threads that wait, and advance everything meanwhile
  bool said_to_wait_ = false;   // Backend::say_waits_for
  Queue queue_;                 // collectives, in order
  std::map<int, Queue> sends_;  // by peer, each in order
  std::map<int, Queue> recvs_;
  std::uint64_t issued_ = 0;  // collectives
  FlightRecorder recorder_;
  std::optional<CommError> failure_;
  Clock::time_point last_check_ = Clock::now();

  std::condition_variable helper_wake_;
  std::thread helper_;
};

}  // namespace trireme::detail
