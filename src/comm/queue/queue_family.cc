// What the queues of a process know of each other.

#include <cstdlib>
#include <map>
#include <memory>

#include "comm/queue/pending.h"
#include "trireme/core/log.h"

namespace trireme::detail {
namespace {

// A process that ends through exit() without destroying its communicators has still left in good
// order.
struct ClosedAtExit {
  std::mutex mutex;
  // Another thread may let go of one that is being closed. Guarded by mutex.
  std::map<OperationQueue*, std::weak_ptr<OperationQueue>> queues;
};

ClosedAtExit& closed_at_exit() {
  static auto* queues = new ClosedAtExit;  // never destroyed: it is used while statics are
  return *queues;
}

void close_all() {
  ClosedAtExit& all = closed_at_exit();
  while (true) {
    std::shared_ptr<OperationQueue> queue;
    {
      const std::lock_guard lock(all.mutex);
      if (all.queues.empty()) {
        return;
      }
      queue = all.queues.begin()->second.lock();
      all.queues.erase(all.queues.begin());
    }
    if (queue) {
      queue->close();
    }
  }
}

}  // namespace

void close_at_exit(OperationQueue* queue) {
  static const int registered = std::atexit(close_all);
  static_cast<void>(registered);
  const std::lock_guard lock(closed_at_exit().mutex);
  closed_at_exit().queues.emplace(queue, queue->weak_from_this());
}

void do_not_close_at_exit(OperationQueue* queue) {
  const std::lock_guard lock(closed_at_exit().mutex);
  closed_at_exit().queues.erase(queue);
}

void QueueFamily::add(OperationQueue* queue) {
  const std::lock_guard lock(mutex_);
  queues_.push_back(queue);
  ++count_;
}

void QueueFamily::remove(OperationQueue* queue) {
  const std::lock_guard lock(mutex_);
  count_ -= static_cast<int>(std::erase(queues_, queue));
}

bool QueueFamily::advance_others(OperationQueue& self) {
  if (count_.load(std::memory_order_relaxed) < 2) {
    return false;
  }
  bool busy = false;
  const std::lock_guard lock(mutex_);
  for (OperationQueue* other : queues_) {
    if (other == &self) {
      continue;
    }
    Turns::Lock turn;
    if (other->turns_ != self.turns_) {
      turn = other->turns_->try_enter();
      if (!turn.owns_lock()) {
        continue;  // whoever is in there advances it
      }
    }
    if (other->failure_) {
      continue;
    }
    try {
      other->advance();
    } catch (const CommError& error) {
      // Kept there for whoever waits.
      log(LogLevel::kDebug, error.what());
    }
    busy |= !other->heads().empty();
  }
  return busy;
}

}  // namespace trireme::detail
