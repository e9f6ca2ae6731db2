#include "comm/shm/progress.h"

#include <algorithm>
#include <cstring>
#include <fstream>

#include <sched.h>

#include "comm/failure_report.h"
#include "comm/shm/matching.h"
#include "trireme/core/log.h"

namespace trireme::detail {
namespace {

// A thread that sleeps because too many operations are in flight marks itself in the upper half of
// `sleeping`: only completions, which otherwise ring nobody, can wake it.
constexpr std::uint32_t kSleeper = 1;
constexpr std::uint32_t kBacklogSleeper = 1 << 16;

constexpr int kSleepMilliseconds = 20;  // at most between two looks at whether the peers are alive
constexpr auto kCheckInterval = std::chrono::milliseconds(10);

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

struct Progress::Pending final : WorkState {
  std::shared_ptr<Progress> owner;
  Call call;
  Steps steps;
  std::uint64_t record = 0;
  bool finished = false;  // guarded by the owner's mutex

  void wait(Milliseconds timeout) override { owner->wait(*this, timeout); }
  bool poll() override { return owner->poll(*this); }
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
}

Work Progress::issue(Operation operation) {
  std::unique_lock lock(mutex_);
  throw_if_failed();
  check_for_abort();
  auto pending = std::make_shared<Pending>();
  pending->owner = shared_from_this();
  pending->call.operation = std::move(operation);
  const OpKind kind = pending->call.operation.kind;
  if (kind == OpKind::kSend || kind == OpKind::kRecv) {
    pending->record = recorder_.issued(0, pending->call.operation);
    pending->steps =
        kind == OpKind::kSend ? messages_.send(pending->call) : messages_.recv(pending->call);
    (kind == OpKind::kSend ? sends_ : recvs_)[pending->call.operation.peer].push_back(pending);
  } else {
    if (last_sequence_ >= kSlots) {
      const std::uint32_t freed = last_sequence_ + 1 - kSlots;
      const auto slot_is_free = [&] {
        for (int peer = 0; peer < station_.size(); ++peer) {
          if (!station_.completed(peer, freed)) {
            return false;
          }
        }
        return true;
      };
      if (!slot_is_free()) {
        lock.unlock();
        run_until(slot_is_free, options_.timeout, kBacklogSleeper);
        lock.lock();
      }
    }
    pending->call.sequence = ++last_sequence_;
    pending->record = recorder_.issued(pending->call.sequence, pending->call.operation);
    pending->steps = collectives_.run(pending->call);
    queue_.push_back(pending);
    collectives_.publish(pending->call);
  }
  helper_wake_.notify_all();
  return Work(std::move(pending));
}

void Progress::abort(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (!failure_) {
    try {
      fail(CommError::Reason::kAborted, station_.rank(), reason);
    } catch (
        const CommError&) {  // NOLINT(bugprone-empty-catch): kept in failure_ for whoever waits
    }
  }
}

void Progress::wait(Pending& pending, Milliseconds timeout) {
  run_until(
      [&] { return pending.finished; }, timeout.count() > 0 ? timeout : options_.timeout, kSleeper);
}

bool Progress::poll(Pending& pending) {
  const std::lock_guard lock(mutex_);
  if (!pending.finished) {
    throw_if_failed();
    check_for_abort();
    while (advance() && !pending.finished) {
    }
  }
  return pending.finished;
}

template <class Finished>
void Progress::run_until(Finished finished, Milliseconds timeout, std::uint32_t sleeper_mark) {
  const Deadline deadline(timeout);
  Backoff backoff(station_.oversubscribed());
  auto next_check = Clock::now() + kCheckInterval;
  std::unique_lock lock(mutex_);
  for (;;) {
    if (finished()) {
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
        moved = finished() || advance();
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
    if (Clock::now() >= next_check && !finished()) {
      check_for_abort();
      check_peers();
      if (deadline.passed() && !advance()) {
        Pending* blocked = blocked_operation();
        int first = -1;
        const std::string missing =
            blocked != nullptr ? missing_text(*blocked, &first) : "a free slot";
        fail(CommError::Reason::kTimeout,
             first,
             concat("waited ", deadline.elapsed_seconds(), " s for ", missing));
      }
      next_check = Clock::now() + kCheckInterval;
    }
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
    fail(error.reason(), error.peer(), error.what());
  } catch (const ConfigError& error) {
    fail(CommError::Reason::kMismatch, station_.rank(), error.what());
  }
  if (head.steps.finished()) {
    recorder_.finished(head.record);
    head.finished = true;
    if (head.call.sequence != 0) {
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

void Progress::throw_if_failed() const {
  if (failure_) {
    throw CommError(*failure_);
  }
}

Progress::Pending* Progress::blocked_operation() {
  if (!queue_.empty()) {
    return queue_.front().get();
  }
  for (auto* queues : {&sends_, &recvs_}) {
    for (auto& [peer, queue] : *queues) {
      if (!queue.empty()) {
        return queue.front().get();
      }
    }
  }
  return nullptr;
}

std::string Progress::missing_text(Pending& pending, int* first_missing) const {
  std::string text;
  if (Condition* condition = pending.steps.waiting()) {
    for (const int peer : condition->missing()) {
      if (*first_missing < 0) {
        *first_missing = peer;
      }
      text += concat(text.empty() ? "" : ", ", station_.name(peer));
    }
  }
  return text.empty() ? "its peers" : text;
}

// Another rank may have found the reason first: then it is everyone's reason.
void Progress::check_for_abort() {
  const AbortRecord& record = station_.control().header().abort;
  if (record.state.load(std::memory_order_acquire) != 2 || failure_) {
    return;
  }
  const std::string text(record.message, strnlen(record.message, sizeof(record.message)));
  record_failure(CommError(static_cast<CommError::Reason>(record.reason),
                           record.blamed,
                           concat("rank ",
                                  station_.rank(),
                                  " of ",
                                  station_.size(),
                                  ": ",
                                  text,
                                  " (found by rank ",
                                  record.reporter,
                                  ")")));
  throw_if_failed();
}

void Progress::check_peers() {
  for (int peer = 0; peer < station_.size(); ++peer) {
    if (peer == station_.rank() || !(station_.has_ended(peer) || station_.has_left(peer))) {
      continue;
    }
    // What it published before it went counts: look again before blaming it.
    if (advance()) {
      return;
    }
    Pending* blocked = blocked_operation();
    if (station_.has_left(peer)) {
      // In good order; it is missed only by those who wait for it.
      Condition* condition = blocked != nullptr ? blocked->steps.waiting() : nullptr;
      const auto missing = condition != nullptr ? condition->missing() : std::vector<int>{};
      if (std::find(missing.begin(), missing.end(), peer) == missing.end()) {
        continue;
      }
      fail(CommError::Reason::kPeerLeft,
           peer,
           concat(station_.name(peer), " while others still wait for it"));
    }
    fail(CommError::Reason::kPeerDied,
         peer,
         concat(station_.name(peer), " without leaving the world: it crashed or was killed"));
  }
}

void Progress::fail(CommError::Reason reason, int blamed, const std::string& what) {
  Pending* blocked = blocked_operation();
  std::string message = concat(
      blocked == nullptr
          ? std::string("between operations")
          : concat(blocked->call.sequence != 0 ? concat("#", blocked->call.sequence, " ") : "",
                   describe(blocked->call.operation.kind,
                            blocked->call.operation.reduce,
                            blocked->call.operation.dtype,
                            blocked->call.operation.total,
                            blocked->call.operation.root)),
      ": ",
      what);
  message += "; last operations:";
  for (int peer = 0; peer < station_.size(); ++peer) {
    const std::uint32_t issued = station_.control().rank(peer).issued.load();
    message +=
        concat(peer == 0 ? " " : ", ", "rank ", peer, " ", describe_slot(station_, peer, issued));
  }
  AbortRecord& record = station_.control().header().abort;
  std::uint32_t none = 0;
  const bool found_first = record.state.compare_exchange_strong(none, 1);
  if (found_first) {
    record.reporter = station_.rank();
    record.blamed = blamed;
    record.reason = static_cast<std::int32_t>(reason);
    message.copy(record.message, sizeof(record.message) - 1);
    record.state.store(2, std::memory_order_seq_cst);
    station_.ring_all();
  }
  record_failure(CommError(
      reason, blamed, concat("rank ", station_.rank(), " of ", station_.size(), ": ", message)));
  if (found_first) {
    write_summary(message);
  }
  throw CommError(*failure_);
}

void Progress::record_failure(const CommError& error) {
  const std::string path =
      recorder_.write(options_.flight_folder, station_.rank(), station_.size(), error.what());
  failure_.emplace(
      error.reason(),
      error.peer(),
      path.empty() ? std::string(error.what()) : concat(error.what(), "; flight record: ", path));
  report_failure(station_.rank(), *failure_);
}

// Written by the rank that found the failure, for all ranks: the dead cannot write their own.
void Progress::write_summary(const std::string& message) const {
  std::ofstream file(concat(options_.flight_folder, "/flight-summary.txt"));
  file << message << "\n";
  for (int peer = 0; peer < station_.size(); ++peer) {
    const RankBlock& block = station_.control().rank(peer);
    file << station_.name(peer) << ": issued " << describe_slot(station_, peer, block.issued.load())
         << ", completed #" << block.completed.load() << "\n";
  }
}

void Progress::helper_loop() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      helper_wake_.wait(lock,
                        [&] { return closing_ || (!failure_ && blocked_operation() != nullptr); });
      if (closing_) {
        return;
      }
    }
    try {
      // The helper has no deadline of its own: whoever waits has. It only looks in from time to
      // time, so that closing does not wait for it long.
      run_until([&] { return closing_ || blocked_operation() == nullptr; },
                std::chrono::hours(24),
                kSleeper);
    } catch (
        const CommError&) {  // NOLINT(bugprone-empty-catch): kept in failure_ for whoever waits
    }
  }
}

}  // namespace trireme::detail
