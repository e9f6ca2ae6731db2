#include "comm/queue/operation_queue.h"

#include <algorithm>
#include <utility>

#include <unistd.h>

#include "comm/queue/goals.h"
#include "comm/queue/pending.h"
#include "comm/queue/time_in_queue.h"
#include "trireme/core/log.h"
#include "trireme/core/pulse.h"

namespace trireme::detail {
namespace {

constexpr int kMostLooksForNews = 16;

}  // namespace

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

}  // namespace trireme::detail
