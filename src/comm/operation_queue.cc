#include "comm/operation_queue.h"

#include <algorithm>

#include <sched.h>

#include "comm/failure_report.h"
#include "comm/waiting.h"
#include "trireme/core/log.h"

// Note [turns]
// A thread that waits keeps the mutex nearly all the time, its rests included, as a transport is
// for one thread at a time. A std::mutex is not fair: let go and taken again at once, it stays with
// the thread that had it, and another one that wants to issue what the first waits for never gets
// in. So whoever finds it taken counts itself, ends the rest, and is let in between two of them.

namespace trireme::detail {
namespace {

constexpr Milliseconds kPause{5};
// Collectives in flight; one more waits for the oldest.
constexpr std::size_t kMostInFlight = 32;

}  // namespace

struct OperationQueue::Pending final : WorkState {
  std::shared_ptr<OperationQueue> owner;
  Operation operation;
  Steps steps;
  std::uint32_t sequence = 0;
  std::uint64_t record = 0;
  bool finished = false;
  Clock::time_point finished_at;
  PollPatience patience;

  std::vector<int> missing_now() const {
    Condition* condition = finished || !steps.valid() ? nullptr : steps.waiting();
    return condition != nullptr ? condition->missing() : std::vector<int>{};
  }
  std::string describe() const {
    return concat(
        sequence != 0 ? concat("#", sequence, " ") : "",
        trireme::describe(
            operation.kind, operation.reduce, operation.dtype, operation.total, operation.root));
  }
  void wait(Milliseconds timeout) override { owner->wait(*this, timeout); }
  bool poll() override { return owner->poll(*this); }
  std::vector<int> missing() override { return owner->missing(*this); }
};

OperationQueue::OperationQueue(QueueHost& host, QueueOptions options)
    : host_(host), options_(std::move(options)) {}

OperationQueue::Lock OperationQueue::enter() {
  Lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) {
    comers_.fetch_add(1);
    if (!closing_) {  // the host is there
      host_.wake();
    }
    lock.lock();
    comers_.fetch_sub(1);
    entered_.fetch_add(1);
  }
  return lock;
}

void OperationQueue::let_others_in(Lock& lock) {
  const std::uint32_t before = entered_;
  lock.unlock();
  while (comers_ > 0 && entered_ == before) {
    sched_yield();
  }
  lock = enter();
}

OperationQueue::~OperationQueue() = default;

void OperationQueue::start_helper() {
  if (options_.helper_thread) {
    helper_ = std::thread([this] { helper_loop(); });
  }
}

bool OperationQueue::anything_pending() const {
  const auto busy = [](const std::map<int, Queue>& queues) {
    return std::any_of(
        queues.begin(), queues.end(), [](const auto& entry) { return !entry.second.empty(); });
  };
  return !queue_.empty() || busy(sends_) || busy(recvs_);
}

void OperationQueue::helper_loop() {
  constexpr auto kPause = std::chrono::microseconds(50);
  Lock lock(mutex_);  // not in a hurry: a thread that waits does what the helper would
  for (;;) {
    helper_wake_.wait(lock, [&] { return closing_ || (!failure_ && anything_pending()); });
    if (closing_) {
      return;
    }
    bool moved = false;
    try {
      moved = advance();
    } catch (const CommError& error) {
      // Kept in failure_ for whoever waits; nobody may.
      log(LogLevel::kDebug, error.what());
    }
    lock.unlock();
    if (!moved) {
      std::this_thread::sleep_for(kPause);
    }
    lock.lock();
  }
}

bool OperationQueue::close() {
  {
    const Lock lock = enter();
    closing_ = true;
    helper_wake_.notify_all();
  }
  if (helper_.joinable()) {
    helper_.join();
  }
  const Lock lock = enter();
  const bool clean = !failure_ && !anything_pending();
  if (!failure_) {
    failure_.emplace(
        CommError::Reason::kAborted, -1, "the communicator of this operation was destroyed");
  }
  // Operations hold the queue that holds them: let go. Their steps end here, with what they use,
  // whoever still holds their Work.
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
  return clean;
}

CommUse OperationQueue::use() const {
  CommUse use;
  use.operations = operations_.load(std::memory_order_relaxed);
  use.bytes = bytes_.load(std::memory_order_relaxed);
  use.seconds = static_cast<double>(nanoseconds_.load(std::memory_order_relaxed)) * 1e-9;
  return use;
}

void OperationQueue::took(Clock::time_point begin, Clock::time_point end) {
  if (end > begin) {
    nanoseconds_.fetch_add(
        std::chrono::duration_cast<std::chrono::nanoseconds>(end - begin).count(),
        std::memory_order_relaxed);
  }
}

Work OperationQueue::issue(Operation operation, const Start& start) {
  operations_.fetch_add(1, std::memory_order_relaxed);
  bytes_.fetch_add(static_cast<std::int64_t>(
                       std::max(operation.input.size_bytes(), operation.output.size_bytes())),
                   std::memory_order_relaxed);
  auto pending = std::make_shared<Pending>();
  Lock lock = enter();
  throw_if_failed();
  if (queue_.size() >= kMostInFlight) {
    const std::shared_ptr<Pending> oldest = queue_.front();
    lock.unlock();
    oldest->wait(Milliseconds(0));
    lock = enter();
    throw_if_failed();
  }
  const auto begin = Clock::now();
  pending->owner = shared_from_this();
  pending->operation = std::move(operation);
  const bool message =
      pending->operation.kind == OpKind::kSend || pending->operation.kind == OpKind::kRecv;
  if (!message) {
    pending->sequence = ++issued_;
  }
  pending->record = recorder_.issued(pending->sequence, pending->operation, begin);
  pending->steps = start(pending->operation, pending->sequence);
  queue_of(*pending).push_back(pending);
  if (options_.helper_thread) {
    helper_wake_.notify_all();
  }
  took(begin, Clock::now());
  return Work(std::move(pending));
}

void OperationQueue::wait(Pending& pending, Milliseconds timeout) {
  const auto begin = Clock::now();
  Deadline deadline(timeout.count() > 0 ? timeout : options_.timeout, begin);
  auto last_look = begin;
  const int spins = options_.oversubscribed ? 0 : 2000;
  int idle = 0;
  Lock lock = enter();
  for (;;) {
    if (pending.finished) {
      took(begin, pending.finished_at);
      return;
    }
    throw_if_failed();
    if (advance()) {
      idle = 0;
      continue;
    }
    ++idle;
    if (idle > spins) {
      if (idle <= spins + 20) {
        lock.unlock();
        sched_yield();
        lock = enter();
      } else {
        if (comers_ == 0) {
          host_.rest(kPause);
        }
        let_others_in(lock);
      }
    }
    if (idle > spins || idle % 256 == 0) {
      const auto now = Clock::now();
      if (now - last_look > kStoppedMyself) {
        deadline.extend(now - last_look);
      }
      last_look = now;
      check(pending, deadline);
    }
  }
}

bool OperationQueue::poll(Pending& pending) {
  const auto begin = Clock::now();
  const Lock lock = enter();
  if (!pending.finished) {
    throw_if_failed();
    while (advance() && !pending.finished) {
    }
  }
  if (!pending.finished) {
    check(pending, pending.patience.at_poll(options_.timeout));
  }
  took(begin, Clock::now());
  return pending.finished;
}

std::vector<int> OperationQueue::missing(Pending& pending) {
  const Lock lock = enter();
  const Queue& queue = queue_of(pending);
  return queue.empty() ? std::vector<int>{} : queue.front()->missing_now();
}

bool OperationQueue::advance() {
  bool moved = host_.pump();
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
  const std::shared_ptr<Pending> head = queue.front();
  try {
    if (!head->steps.advance()) {
      return false;
    }
  } catch (const CommError& error) {
    fail_unless_told(error, head.get());
  } catch (const std::exception& error) {
    fail(CommError(CommError::Reason::kAborted, host_.rank(), error.what()), head.get(), true);
  }
  if (head->steps.finished()) {
    head->finished = true;
    head->finished_at = Clock::now();
    recorder_.finished(head->record, head->finished_at);
    if (head->sequence != 0) {
      completed_ = head->sequence;
    }
    queue.pop_front();
    head->steps = {};
    head->operation.input = {};  // the memory is the caller's again
    head->operation.output = {};
  }
  return true;
}

OperationQueue::Queue& OperationQueue::queue_of(const Pending& pending) {
  switch (pending.operation.kind) {
    case OpKind::kSend:
      return sends_[pending.operation.peer];
    case OpKind::kRecv:
      return recvs_[pending.operation.peer];
    default:
      return queue_;
  }
}

void OperationQueue::throw_if_failed() const {
  if (failure_) {
    throw CommError(*failure_);
  }
}

void OperationQueue::check(Pending& pending, const Deadline& deadline) {
  const auto now = Clock::now();
  if (now - last_check_ < kCheckInterval) {
    return;
  }
  last_check_ = now;
  const Queue& queue = queue_of(pending);
  const Pending* stuck = queue.empty() ? nullptr : queue.front().get();
  const auto missing = stuck != nullptr ? stuck->missing_now() : std::vector<int>{};
  if (launcher_has_ended()) {
    fail(CommError(CommError::Reason::kAborted, -1, "the launcher of this job has ended"),
         stuck,
         true);
  }
  if (auto loss = host_.loss(missing)) {
    // What it sent before it went counts: look again before blaming it.
    if (advance() || pending.finished) {
      return;
    }
    fail(*loss, stuck, true);
  }
  if (deadline.passed_by(host_.grace(missing)) && !advance()) {
    std::string names;
    for (const int peer : missing) {
      names += concat(names.empty() ? "" : ", ", host_.name(peer));
    }
    fail(CommError(CommError::Reason::kTimeout,
                   missing.empty() ? -1 : missing.front(),
                   concat("waited ",
                          deadline.elapsed_seconds(),
                          " s for ",
                          names.empty() ? "its peers" : names,
                          ": stopped, busy elsewhere, or cut off from the network; trireme doctor "
                          "shows which, --timeout allows more")),
         stuck,
         true);
  }
}

void OperationQueue::abort(const std::string& reason) {
  const Lock lock = enter();
  if (failure_) {
    return;
  }
  try {
    fail_unless_told(CommError(CommError::Reason::kAborted, host_.rank(), reason), nullptr);
  } catch (const CommError& error) {
    // Kept in failure_ for whoever waits; the caller of abort already knows.
    log(LogLevel::kDebug, error.what());
  }
}

void OperationQueue::fail_with(const CommError& error) {
  const Lock lock = enter();
  throw_if_failed();
  fail_unless_told(error, nullptr);
}

void OperationQueue::fail_unless_told(const CommError& error, const Pending* stuck) {
  constexpr int kMostTurns = 100;
  for (int turn = 0; turn < kMostTurns && host_.pump(); ++turn) {
  }
  const auto told = host_.loss({});
  fail(told && error.reason() != CommError::Reason::kMismatch ? *told : error, stuck, true);
}

std::optional<CommError> OperationQueue::find_failure(Milliseconds patience) {
  const Deadline deadline(patience);
  for (;;) {
    {
      const Lock lock = enter();
      try {
        throw_if_failed();
        advance();
        if (const auto loss = host_.loss({})) {
          fail(*loss, nullptr, true);
        }
      } catch (const CommError& error) {
        return error;
      }
    }
    if (deadline.passed()) {
      return std::nullopt;
    }
    std::this_thread::sleep_for(kPause);
  }
}

void OperationQueue::fail(const CommError& error, const Pending* stuck, bool spread) {
  // A failure that was found elsewhere comes with its own words.
  const std::string message =
      options_.quiet ? error.what()
                     : concat("rank ",
                              host_.rank(),
                              " of ",
                              host_.size(),
                              ": ",
                              stuck == nullptr ? "between operations" : stuck->describe(),
                              ": ",
                              error.what(),
                              host_.last_operations());
  const CommError full(error.reason(), error.peer(), message);
  if (options_.quiet) {
    failure_ = full;
  } else {
    const std::string record =
        recorder_.write(options_.flight_folder, host_.rank(), host_.size(), message);
    failure_.emplace(error.reason(), error.peer(), concat(message, "; ", record));
    report_failure(host_.rank(), *failure_);
  }
  if (spread) {
    host_.spread(full);
  }
  throw CommError(*failure_);
}

}  // namespace trireme::detail
