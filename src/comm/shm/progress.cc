#include "comm/shm/progress.h"

#include <algorithm>

#include <sched.h>

#include "comm/shm/matching.h"
#include "comm/shm/pending.h"
#include "comm/waiting.h"
#include "trireme/core/log.h"

namespace trireme::detail {
namespace {

// A thread that sleeps because too many operations are in flight marks itself in the upper half of
// `sleeping`: only completions, which otherwise ring nobody, can wake it.
constexpr std::uint32_t kSleeper = 1;
constexpr std::uint32_t kBacklogSleeper = 1 << 16;

constexpr int kSleepMilliseconds = 20;  // at most between two looks at whether the peers are alive

void relax_processor() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// How long a thread looks before it sleeps. With a processor for every rank, a peer is usually
// microseconds away, and a futex wake costs more than that; without, spinning only keeps the peer
// from running.
class Backoff {
 public:
  explicit Backoff(bool oversubscribed)
      : spins_(oversubscribed ? 0 : 4000), yields_(oversubscribed ? 2 : 50) {}

  void reset() { count_ = 0; }
  // False when it is time to sleep.
  bool pause() {
    ++count_;
    if (count_ <= spins_) {
      relax_processor();
      return true;
    }
    if (count_ <= spins_ + yields_) {
      sched_yield();
      return true;
    }
    return false;
  }

 private:
  int spins_;
  int yields_;
  int count_ = 0;
};

}  // namespace

class Progress::Completion final : public Goal {
 public:
  Completion(Progress& progress, Pending& pending) : progress_(progress), pending_(pending) {}
  bool reached() override { return pending_.finished; }
  Pending* stuck() override {
    Queue& queue = progress_.queue_of(pending_);
    return queue.empty() ? nullptr : queue.front().get();
  }
  std::vector<int> missing() override {
    Pending* head = stuck();
    return head != nullptr ? head->missing_now() : std::vector<int>{};
  }

 private:
  Progress& progress_;
  Pending& pending_;
};

class Progress::FreeSlot final : public Goal {
 public:
  FreeSlot(Progress& progress, std::uint32_t freed) : progress_(progress), freed_(freed) {}
  bool reached() override { return missing().empty(); }
  Pending* stuck() override {
    return progress_.queue_.empty() ? nullptr : progress_.queue_.front().get();
  }
  std::vector<int> missing() override {
    std::vector<int> ranks;
    for (int peer = 0; peer < progress_.station_.size(); ++peer) {
      if (!progress_.station_.completed(peer, freed_)) {
        ranks.push_back(peer);
      }
    }
    return ranks;
  }

 private:
  Progress& progress_;
  std::uint32_t freed_;  // the operation whose slot is needed
};

class Progress::Idleness final : public Goal {
 public:
  explicit Idleness(Progress& progress) : progress_(progress) {}
  bool reached() override { return progress_.closing_ || progress_.heads().empty(); }
  Pending* stuck() override {
    const auto heads = progress_.heads();
    return heads.empty() ? nullptr : heads.front();
  }
  std::vector<int> missing() override {
    std::vector<int> ranks;
    for (Pending* head : progress_.heads()) {
      const auto more = head->missing_now();
      ranks.insert(ranks.end(), more.begin(), more.end());
    }
    return ranks;
  }

 private:
  Progress& progress_;
};

Progress::Progress(Membership membership, ProgressOptions options)
    : options_(std::move(options)),
      station_(std::move(membership)),
      collectives_(station_),
      messages_(station_) {}

Progress::~Progress() = default;

void Progress::start_helper() {
  if (options_.helper_thread) {
    helper_ = std::thread([this] { helper_loop(); });
  }
}

void Progress::close() {
  if (station_.in_forked_child()) {
    keep_in_forked_child(shared_from_this());
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    if (!failure_) {
      failure_.emplace(
          CommError::Reason::kAborted, -1, "the communicator of this operation was destroyed");
    }
    helper_wake_.notify_all();
  }
  if (helper_.joinable()) {
    helper_.join();
  }
  const std::lock_guard lock(mutex_);
  // Operations hold the Progress that holds them: let go.
  queue_.clear();
  sends_.clear();
  recvs_.clear();
  // A Work or a SharedBuffer may be kept for long, and this with it.
  station_.leave();
}

class Progress::Timer {
 public:
  explicit Timer(Progress& progress) : progress_(progress) {}
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;
  ~Timer() {
    progress_.nanoseconds_.fetch_add(
        std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin_).count(),
        std::memory_order_relaxed);
  }

 private:
  Progress& progress_;
  Clock::time_point begin_ = Clock::now();
};

CommUse Progress::use() const {
  return {operations_.load(std::memory_order_relaxed),
          bytes_.load(std::memory_order_relaxed),
          static_cast<double>(nanoseconds_.load(std::memory_order_relaxed)) * 1e-9};
}

Work Progress::issue(Operation operation) {
  const Timer timer(*this);
  operations_.fetch_add(1, std::memory_order_relaxed);
  bytes_.fetch_add(static_cast<std::int64_t>(
                       std::max(operation.input.size_bytes(), operation.output.size_bytes())),
                   std::memory_order_relaxed);
  std::unique_lock lock(mutex_);
  throw_if_failed();
  check_for_abort();
  auto pending = std::make_shared<Pending>();
  pending->owner = shared_from_this();
  pending->call.operation = std::move(operation);
  const OpKind kind = pending->call.operation.kind;
  if (kind == OpKind::kSend) {
    pending->steps = messages_.send(pending->call);
  } else if (kind == OpKind::kRecv) {
    pending->steps = messages_.recv(pending->call);
  } else {
    const std::uint32_t sequence = sequence_of(station_, issued_ + 1);
    FreeSlot slot(*this, sequence - kSlots);
    if (issued_ >= kSlots && !slot.reached()) {
      lock.unlock();
      run_until(slot, options_.timeout, kBacklogSleeper);
      lock.lock();
    }
    pending->call.number = ++issued_;
    pending->call.sequence = sequence;
    pending->steps = collectives_.run(pending->call);
  }
  pending->record = recorder_.issued(
      static_cast<std::uint32_t>(pending->call.number), pending->call.operation, Clock::now());
  queue_of(*pending).push_back(pending);
  if (pending->is_collective()) {
    collectives_.publish(pending->call);
  }
  helper_wake_.notify_all();
  return Work(std::move(pending));
}

void Progress::wait(Pending& pending, Milliseconds timeout) {
  const Timer timer(*this);
  Completion goal(*this, pending);
  run_until(goal, timeout.count() > 0 ? timeout : options_.timeout, kSleeper);
}

bool Progress::poll(Pending& pending) {
  const Timer timer(*this);
  const std::lock_guard lock(mutex_);
  if (!pending.finished) {
    throw_if_failed();
    check_for_abort();
    while (advance() && !pending.finished) {
    }
  }
  if (!pending.finished) {
    Completion goal(*this, pending);
    check(goal, pending.patience.at_poll(options_.timeout));
  }
  return pending.finished;
}

std::vector<int> Progress::missing(Pending& pending) {
  const std::lock_guard lock(mutex_);
  Completion goal(*this, pending);
  return goal.missing();
}

void Progress::run_until(Goal& goal, Milliseconds timeout, std::uint32_t sleeper_mark) {
  Deadline deadline(timeout);
  Backoff backoff(station_.oversubscribed());
  auto last_look = Clock::now();
  std::unique_lock lock(mutex_);
  for (;;) {
    if (goal.reached()) {
      return;
    }
    throw_if_failed();
    if (advance()) {
      backoff.reset();
      continue;
    }
    check_for_abort();
    lock.unlock();
    if (!backoff.pause()) {
      // See Note [doorbells]: raise the flag, look once more, sleep.
      RankBlock& self = station_.self();
      self.sleeping.fetch_add(sleeper_mark, std::memory_order_seq_cst);
      const std::uint32_t seen = self.bell.load(std::memory_order_seq_cst);
      lock.lock();
      bool moved = false;
      try {
        moved = goal.reached() || advance();
      } catch (...) {
        self.sleeping.fetch_sub(sleeper_mark, std::memory_order_seq_cst);
        throw;
      }
      lock.unlock();
      if (!moved) {
        station_.sleep_on_bell(seen, kSleepMilliseconds);
      }
      self.sleeping.fetch_sub(sleeper_mark, std::memory_order_seq_cst);
    }
    lock.lock();
    const auto now = Clock::now();
    if (now - last_look > kStoppedMyself) {
      deadline.extend(now - last_look);
    }
    last_look = now;
    check(goal, deadline);
  }
}

bool Progress::advance() {
  bool moved = advance_head(queue_);
  for (auto* queues : {&sends_, &recvs_}) {
    for (auto& [peer, queue] : *queues) {
      moved |= advance_head(queue);
    }
  }
  return moved;
}

bool Progress::advance_head(Queue& queue) {
  if (queue.empty()) {
    return false;
  }
  Pending& head = *queue.front();
  try {
    if (!head.steps.advance()) {
      return false;
    }
  } catch (const CommError& error) {
    fail(error.reason(), error.peer(), error.what(), &head);
  } catch (const std::exception& error) {
    fail(CommError::Reason::kAborted, station_.rank(), error.what(), &head);
  }
  if (head.steps.finished()) {
    recorder_.finished(head.record, Clock::now());
    head.finished = true;
    if (head.is_collective()) {
      station_.self().completed.store(head.call.sequence, std::memory_order_seq_cst);
      for (int peer = 0; peer < station_.size(); ++peer) {
        if (station_.control().rank(peer).sleeping.load(std::memory_order_seq_cst) >=
            kBacklogSleeper) {
          station_.ring(peer);
        }
      }
    }
    const auto keep = std::move(queue.front());
    queue.pop_front();
    keep->call.operation.input = {};  // the memory is the caller's again
    keep->call.operation.output = {};
  }
  return true;
}

Progress::Queue& Progress::queue_of(const Pending& pending) {
  if (pending.is_collective()) {
    return queue_;
  }
  auto& queues = pending.call.operation.kind == OpKind::kSend ? sends_ : recvs_;
  return queues[pending.call.operation.peer];
}

std::vector<Progress::Pending*> Progress::heads() {
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

void Progress::helper_loop() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      helper_wake_.wait(lock, [&] { return closing_ || (!failure_ && !heads().empty()); });
      if (closing_) {
        return;
      }
    }
    try {
      // The helper has no deadline of its own: whoever waits has.
      Idleness goal(*this);
      run_until(goal, Milliseconds::max(), kSleeper);
    } catch (const CommError& error) {
      // Kept in failure_ for whoever waits; nobody may.
      log(LogLevel::kDebug, error.what());
    }
  }
}

}  // namespace trireme::detail
