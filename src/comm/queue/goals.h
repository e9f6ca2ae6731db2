#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "comm/queue/pending.h"

// What a thread waits for in a queue.

namespace trireme::detail {

// Collectives in flight; one more waits for the oldest.
inline constexpr std::size_t kMostInFlight = 32;

class OperationQueue::Completion final : public Goal {
 public:
  Completion(OperationQueue& queue, Pending& pending) : queue_(queue), pending_(pending) {}
  bool reached() override { return pending_.finished; }
  Pending* stuck() override {
    const Queue& queue = queue_.queue_of(pending_);
    return queue.empty() ? nullptr : queue.front().get();
  }
  std::vector<int> missing() override {
    const Pending* head = stuck();
    return head != nullptr ? head->missing_now() : std::vector<int>{};
  }

 private:
  OperationQueue& queue_;
  Pending& pending_;
};

// Of one of several, or that a time has passed.
class OperationQueue::AnyCompletion final : public Goal {
 public:
  AnyCompletion(const std::vector<WorkState*>& works, Milliseconds most)
      : works_(works), end_(most) {}
  bool reached() override {
    const auto done =
        std::ranges::find_if(works_, [](const WorkState* w) { return of(w).finished; });
    if (done != works_.end()) {
      found_ = static_cast<std::size_t>(done - works_.begin());
    }
    return found_ || end_.passed();
  }
  std::optional<std::size_t> found() const { return found_; }
  Pending* stuck() override {
    return works_.empty() ? nullptr : static_cast<Pending*>(works_.front());
  }
  std::vector<int> missing() override {
    std::vector<int> ranks;
    for (const WorkState* work : works_) {
      const std::vector<int> more = of(work).missing_now();
      ranks.insert(ranks.end(), more.begin(), more.end());
    }
    return ranks;
  }
  bool is_helpers() const override { return true; }

 private:
  static const Pending& of(const WorkState* work) { return *static_cast<const Pending*>(work); }

  const std::vector<WorkState*>& works_;
  const Deadline end_;
  std::optional<std::size_t> found_;
};

class OperationQueue::Room final : public Goal {
 public:
  Room(OperationQueue& queue, std::uint64_t number) : queue_(queue), number_(number) {}
  bool reached() override {
    return queue_.queue_.size() < kMostInFlight && queue_.backend_->without_room(number_).empty();
  }
  Pending* stuck() override {
    return queue_.queue_.empty() ? nullptr : queue_.queue_.front().get();
  }
  std::vector<int> missing() override {
    if (queue_.queue_.size() < kMostInFlight) {
      return queue_.backend_->without_room(number_);
    }
    return stuck()->missing_now();
  }
  bool is_room() const override { return true; }

 private:
  OperationQueue& queue_;
  std::uint64_t number_;
};

class OperationQueue::Idleness final : public Goal {
 public:
  explicit Idleness(OperationQueue& queue) : queue_(queue) {}
  bool reached() override { return !queue_.needs_helper(); }
  Pending* stuck() override {
    const auto heads = queue_.heads();
    return heads.empty() ? nullptr : heads.front();
  }
  std::vector<int> missing() override {
    std::vector<int> ranks;
    for (const Pending* head : queue_.heads()) {
      const auto more = head->missing_now();
      ranks.insert(ranks.end(), more.begin(), more.end());
    }
    return ranks;
  }
  bool is_helpers() const override { return true; }

 private:
  OperationQueue& queue_;
};

}  // namespace trireme::detail
