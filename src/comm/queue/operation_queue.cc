#include "comm/queue/operation_queue.h"

#include <algorithm>
#include <thread>
#include <utility>

#include <sched.h>
#include <unistd.h>

#include "comm/queue/goals.h"
#include "comm/queue/pending.h"
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
constexpr int kMostLooksForNews = 16;

}  // namespace

// Adds the time that a caller spends in here to the books.
class OperationQueue::Timer {
 public:
  explicit Timer(OperationQueue& queue) : queue_(queue) {}
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;
  ~Timer() {
    queue_.nanoseconds_.fetch_add(
        std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin_).count(),
        std::memory_order_relaxed);
  }

 private:
  OperationQueue& queue_;
  Clock::time_point begin_ = Clock::now();
};

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

OperationQueue::OperationQueue(std::unique_ptr<Backend> backend, QueueOptions options)
    : backend_(std::move(backend)),
      options_(std::move(options)),
      turns_(options_.turns),
      owner_(getpid()) {}

OperationQueue::~OperationQueue() = default;

OperationQueue::Lock OperationQueue::enter() {
  return turns_->enter([this] { backend_->wake(); });
}

void OperationQueue::end_with(const std::shared_ptr<OperationQueue>& parent,
                              const std::vector<int>& ranks) {
  if (!parent) {
    return;
  }
  ancestors_.push_back({parent, parent->ending_, ranks});
  for (const Ancestor& above : parent->ancestors_) {
    Ancestor ancestor{above.queue, above.ending, {}};
    for (const int rank : ranks) {
      ancestor.ranks.push_back(above.ranks[static_cast<std::size_t>(rank)]);
    }
    ancestors_.push_back(std::move(ancestor));
  }
}

void OperationQueue::open() {
  // First what may fail for want of threads: nobody is to know of a queue that was not opened.
  if (options_.helper_thread) {
    helper_ = std::thread([this] { helper_loop(); });
  }
  {
    const Lock lock = enter();
    backend_->open();
  }
  options_.family->add(this);
  if (backend_->closes_at_exit()) {
    close_at_exit(this);
  }
}

void OperationQueue::close() {
  if (getpid() != owner_) {
    backend_->close_in_child();
    keep_in_forked_child(shared_from_this());
    return;
  }
  do_not_close_at_exit(this);
  options_.family->remove(this);
  {
    const Lock lock = enter();
    if (std::exchange(closed_, true)) {
      return;
    }
    helper_wake_.notify_all();
  }
  if (helper_.joinable()) {
    helper_.join();
  }
  const Lock lock = enter();
  if (!failure_) {
    try {
      // Whoever waits for this rank hears why it leaves.
      check_ancestors(false);
    } catch (const CommError& error) {
      log(LogLevel::kDebug, error.what());
    }
  }
  const bool clean = !failure_ && heads().empty();
  if (!failure_) {
    failure_.emplace(
        CommError::Reason::kAborted, -1, "the communicator of this operation was destroyed");
  }
  drop_all();
  // A Work or a SharedBuffer may be kept for long, and the backend with it.
  backend_->close(clean);
}

// Operations hold the queue that holds them: let go. Their steps end here, with what they use,
// whoever still holds their Work.
void OperationQueue::drop_all() {
  const auto drop = [](Queue& queue) {
    for (const auto& pending : queue) {
      pending->steps = {};
    }
    queue.clear();
  };
  drop(queue_);
  for (auto* queues : {&sends_, &recvs_}) {
    for (auto& [peer, queue] : *queues) {
      drop(queue);
    }
  }
}

CommUse OperationQueue::use() const {
  return {operations_.load(std::memory_order_relaxed),
          bytes_.load(std::memory_order_relaxed),
          static_cast<double>(nanoseconds_.load(std::memory_order_relaxed)) * 1e-9,
          backend_->network_bytes()};
}

Work OperationQueue::issue(Operation operation) {
  const Timer timer(*this);
  mark(PulsePhase::kCollective);
  operations_.fetch_add(1, std::memory_order_relaxed);
  bytes_.fetch_add(static_cast<std::int64_t>(
                       std::max(operation.input.size_bytes(), operation.output.size_bytes())),
                   std::memory_order_relaxed);
  auto pending = std::make_shared<Pending>();
  pending->owner = shared_from_this();
  pending->call.operation = std::move(operation);
  Lock lock = enter();
  throw_if_failed();
  throw_if_told();
  if (pending->call.is_collective()) {
    Room room(*this, issued_ + 1);
    if (!room.reached()) {
      lock.unlock();
      run_until(room, options_.timeout);
      lock = enter();
      throw_if_failed();
    }
    pending->call.number = ++issued_;
  }
  if (!options_.part && queue_.empty() && !backend_->one_machine()) {
    read_news();
  }
  pending->record = recorder_.issued(
      static_cast<std::uint32_t>(pending->call.number), pending->call.operation, Clock::now());
  pending->steps = backend_->start(pending->call);
  queue_of(*pending).push_back(pending);
  if (options_.helper_thread) {
    helper_wake_.notify_all();
  }
  return Work(std::move(pending));
}

// A goodbye that is there already is read before anything is sent to who said it: its connection is
// closed, sending finds that, and what was not read by then is gone with it.
void OperationQueue::read_news() {
  for (int look = 0; look < kMostLooksForNews && backend_->pump(); ++look) {
  }
  throw_if_told();
}

void OperationQueue::wait(Pending& pending, Milliseconds timeout) {
  const Timer timer(*this);
  Completion goal(*this, pending);
  run_until(goal, timeout.count() > 0 ? timeout : options_.timeout);
}

std::optional<std::size_t> OperationQueue::wait_any(const std::vector<WorkState*>& works,
                                                    Milliseconds most) {
  AnyCompletion goal(works, most);
  run_until(goal, kForever);
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

void OperationQueue::run_until(Goal& goal, Milliseconds timeout) {
  auto last_look = Clock::now();
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

bool OperationQueue::advance() {
  bool moved = backend_->pump();
  moved |= advance_head(queue_);
  for (auto* queues : {&sends_, &recvs_}) {
    for (auto& [peer, queue] : *queues) {
      moved |= advance_head(queue);
    }
  }
  return moved;
}

bool OperationQueue::advance_head(Queue& queue) {
  if (queue.empty()) {
    return false;
  }
  Pending& head = *queue.front();
  try {
    if (!head.steps.advance()) {
      return false;
    }
  } catch (const CommError& error) {
    fail(cause_of(error), &head);
  } catch (const std::exception& error) {
    fail(CommError(CommError::Reason::kAborted, backend_->rank(), error.what()), &head);
  }
  if (head.steps.finished()) {
    recorder_.finished(head.record, Clock::now());
    mark(PulsePhase::kCollective);
    head.finished = true;
    if (head.call.is_collective()) {
      completed_ = head.call.number;
      backend_->completed(head.call);
    }
    const auto keep = std::move(queue.front());
    queue.pop_front();
    keep->steps = {};
    keep->call.operation.input = {};  // the memory is the caller's again
    keep->call.operation.output = {};
  }
  return true;
}

OperationQueue::Queue& OperationQueue::queue_of(const Pending& pending) {
  if (pending.call.is_collective()) {
    return queue_;
  }
  auto& queues = pending.call.operation.kind == OpKind::kSend ? sends_ : recvs_;
  return queues[pending.call.operation.peer];
}

std::vector<OperationQueue::Pending*> OperationQueue::heads() {
  std::vector<Pending*> result;
  if (!queue_.empty()) {
    result.push_back(queue_.front().get());
  }
  for (auto* queues : {&sends_, &recvs_}) {
    for (auto& [peer, queue] : *queues) {
      if (!queue.empty()) {
        result.push_back(queue.front().get());
      }
    }
  }
  return result;
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
      run_until(goal, kForever);
    } catch (const CommError& error) {
      // Kept in failure_ for whoever waits; nobody may.
      log(LogLevel::kDebug, error.what());
    }
  }
}

}  // namespace trireme::detail
