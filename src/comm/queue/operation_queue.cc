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
// Operations that are under way at a time, each with memory for what arrives. See Note [ahead].
constexpr std::size_t kMostAhead = 8;
constexpr std::size_t kMostBytesAhead = 64 << 20;  // of their inputs, but for the first

bool overlap(const ConstSpan& a, const ConstSpan& b) {
  return a.numel() > 0 && b.numel() > 0 && a.bytes() < b.bytes() + b.size_bytes() &&
         b.bytes() < a.bytes() + a.size_bytes();
}

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
  Clock::time_point now = timer.begin();
  Lock lock = enter();
  throw_if_failed();
  throw_if_told();
  if (pending->call.is_collective()) {
    Room room(*this, issued_ + 1);
    if (!room.reached()) {
      lock.unlock();
      run_until(room, options_.timeout, timer.begin());
      now = Clock::now();
      lock = enter();
      throw_if_failed();
    }
    pending->call.number = ++issued_;
  }
  if (!options_.part && queue_.empty() && !backend_->one_machine()) {
    read_news();
  }
  pending->record = recorder_.issued(
      static_cast<std::uint32_t>(pending->call.number), pending->call.operation, now);
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
  moved |= advance(queue_);
  for (auto* queues : {&sends_, &recvs_}) {
    for (auto& [peer, queue] : *queues) {
      moved |= advance(queue);
    }
  }
  return moved;
}

// Note [ahead]
// Operations end in their order. One may begin before those in front of it have ended, so that what
// it sends is on its way while they wait: a link that carries both directions would otherwise have
// nothing to carry in one of them, or in neither, most of the time. It begins when all of those
// have posted all of their messages, as messages between two ranks arrive in the order in which
// they are posted; and where it has no memory in common with them, unless all of them only read it.
bool OperationQueue::advance(Queue& queue) {
  bool moved = false;
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < std::min(queue.size(), kMostAhead); ++i) {
    Pending& pending = *queue[i];
    bytes += pending.call.operation.input.size_bytes();
    if (!pending.begun && i > 0 &&
        (bytes > kMostBytesAhead || !may_begin(pending, queue, static_cast<std::ptrdiff_t>(i)))) {
      break;
    }
    pending.begun = true;
    moved |= advance(pending, i == 0);
    if (pending.failure || (!pending.steps.finished() && !pending.steps.all_posted())) {
      break;
    }
  }
  while (!queue.empty() && queue.front()->begun && !queue.front()->failure &&
         queue.front()->steps.finished()) {
    finish_head(queue);
  }
  return moved;
}

bool OperationQueue::may_begin(const Pending& pending, const Queue& queue, std::ptrdiff_t before) {
  const Operation& op = pending.call.operation;
  return std::ranges::none_of(queue.begin(), queue.begin() + before, [&](const auto& other) {
    const Operation& earlier = other->call.operation;
    return op.kind == OpKind::kBarrier || overlap(op.input, earlier.output) ||
           overlap(op.output, earlier.output) || overlap(op.output, earlier.input);
  });
}

// Failures come in the order of the operations, too: one that is not `at_head` keeps its own.
bool OperationQueue::advance(Pending& pending, bool at_head) {
  try {
    if (at_head && pending.failure) {
      std::rethrow_exception(std::exchange(pending.failure, {}));
    }
    return !pending.failure && !pending.steps.finished() && pending.steps.advance();
  } catch (...) {
    if (!at_head) {
      pending.failure = std::current_exception();
      return true;
    }
    fail_with(std::current_exception(), pending);
  }
}

void OperationQueue::fail_with(const std::exception_ptr& failure, const Pending& pending) {
  try {
    std::rethrow_exception(failure);
  } catch (const CommError& error) {
    fail(cause_of(error), &pending);
  } catch (const std::exception& error) {
    fail(CommError(CommError::Reason::kAborted, backend_->rank(), error.what()), &pending);
  }
}

void OperationQueue::finish_head(Queue& queue) {
  const auto head = std::move(queue.front());
  queue.pop_front();
  head->finished_at = Clock::now();
  recorder_.finished(head->record, head->finished_at);
  mark(PulsePhase::kCollective);
  head->finished = true;
  if (head->call.is_collective()) {
    completed_ = head->call.number;
    backend_->completed(head->call);
  }
  head->steps = {};
  head->call.operation.input = {};  // the memory is the caller's again
  head->call.operation.output = {};
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
