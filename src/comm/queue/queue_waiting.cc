// How a thread waits for an operation: it advances everything, looks, and rests.

#include <thread>

#include <sched.h>

#include "comm/queue/goals.h"
#include "comm/queue/operation_queue.h"
#include "comm/queue/pending.h"
#include "comm/queue/time_in_queue.h"
#include "trireme/core/log.h"
#include "trireme/core/pulse.h"

namespace trireme::detail {
namespace {

// At most between two looks at whether the peers are alive; less where another communicator of this
// rank may go on meanwhile.
constexpr Milliseconds kRest{20};
constexpr Milliseconds kRestBesideOthers{1};
constexpr std::chrono::microseconds kRestBesideGpu{20};
// Looks between two readings of the clock, and between two looks at the other communicators.
constexpr int kLooksPerReading = 64;

}  // namespace

// A thread that waits in here, in the place of the helper. Lives under the lock.
class OperationQueue::Waiter {
 public:
  explicit Waiter(OperationQueue& queue) : queue_(queue) { ++queue_.waiters_; }
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;
  ~Waiter() {
    --queue_.waiters_;
    if (queue_.said_to_wait_ && queue_.waiters_ == 0) {
      queue_.say_waits_for({});
    }
    if (queue_.options_.helper_thread && queue_.needs_helper()) {
      queue_.helper_wake_.notify_all();
    }
  }

 private:
  OperationQueue& queue_;
  const PulseWait pulse_;
};

void OperationQueue::wait(Pending& pending, Milliseconds timeout) {
  Timer timer(*this);
  Completion goal(*this, pending);
  run_until(goal, timeout.count() > 0 ? timeout : options_.timeout, timer.begin());
  timer.end(pending.finished_at);
}

std::optional<std::size_t> OperationQueue::wait_any(const std::vector<WorkState*>& works,
                                                    Milliseconds most) {
  AnyCompletion goal(works, most);
  run_until(goal, kForever, Clock::now());
  return goal.found();
}

bool OperationQueue::poll(Pending& pending) {
  const Timer timer(*this);
  const Lock lock = enter();
  if (!pending.finished) {
    throw_if_failed();
    throw_if_told();
    while (advance() && !pending.finished) {
    }
  }
  if (!options_.part) {
    mark(PulsePhase::kCollective);  // whoever looks again and again waits for others
  }
  if (!pending.finished) {
    Completion goal(*this, pending);
    // A part is polled under the lock of the communicator that it belongs to, which looks itself,
    // and whose wait has the deadline.
    const Milliseconds timeout = options_.part ? kForever : options_.timeout;
    check(goal, pending.patience.at_poll(timeout), !options_.part);
  }
  return pending.finished;
}

std::vector<int> OperationQueue::missing(Pending& pending) {
  const Lock lock = enter();
  return Completion(*this, pending).missing();
}

void OperationQueue::run_until(Goal& goal, Milliseconds timeout, Clock::time_point begin) {
  auto last_look = begin;
  Deadline deadline(timeout, last_look);
  int idle = 0;
  bool others_busy = false;
  Lock lock = enter();
  std::optional<Waiter> waiter;
  if (!goal.is_helpers()) {
    waiter.emplace(*this);
  }
  for (;;) {
    if (goal.reached()) {
      return;
    }
    throw_if_failed();
    if (advance()) {
      idle = 0;
      continue;
    }
    throw_if_told();
    ++idle;
    // How long a thread looks before it rests: with a processor for every rank, a peer is usually
    // microseconds away, and a wake-up costs more than that; without, spinning only keeps the peer
    // from running.
    const bool spins = idle <= options_.spins;
    if (turns_->somebody_waits()) {
      turns_->pass(lock);
      lock = enter();
    } else if (spins) {
      relax_processor();
    } else if (idle <= options_.spins + options_.yields) {
      lock.unlock();
      sched_yield();
      lock = enter();
    } else {
      rest(lock, goal, others_busy);
    }
    if (!spins || idle % kLooksPerReading == 0) {
      others_busy = options_.family->advance_others(*this);
      const auto now = Clock::now();
      if (now - last_look > kStoppedMyself) {
        deadline.extend(now - last_look);
      }
      last_look = now;
      check(goal, deadline, true);
    }
  }
}

// See Note [doorbells] in shm/endpoint.cc: the announcement, one more look, the rest.
void OperationQueue::rest(Lock& lock, Goal& goal, bool others_busy) {
  const bool for_room = goal.is_room();
  struct Announced {
    Backend& backend;
    bool for_room;
    std::uint32_t mark = backend.announce_rest(for_room);
    ~Announced() { backend.end_rest(for_room); }
  };
  const Announced announced{*backend_, for_room};
  if (goal.reached() || advance()) {
    return;
  }
  const bool waits_silently = !queue_.empty() && queue_.front()->steps.waiting() != nullptr &&
                              queue_.front()->steps.waiting()->is_silent();
  const bool unlocked = backend_->rests_unlocked();
  if (unlocked) {
    lock.unlock();
  }
  if (waits_silently) {
    std::this_thread::sleep_for(kRestBesideGpu);
  } else {
    backend_->rest(announced.mark, others_busy ? kRestBesideOthers : kRest);
  }
  if (unlocked) {
    lock = enter();
  }
}

void OperationQueue::helper_loop() {
  for (;;) {
    {
      Lock lock = enter();
      helper_wake_.wait(lock, [&] { return closed_ || needs_helper(); });
      if (closed_) {
        return;
      }
    }
    try {
      // The helper has no deadline of its own: whoever waits has.
      Idleness goal(*this);
      run_until(goal, kForever, Clock::now());
    } catch (const CommError& error) {
      // Kept in failure_ for whoever waits; nobody may.
      log(LogLevel::kDebug, error.what());
    }
  }
}

}  // namespace trireme::detail
