#pragma once

#include <memory>
#include <vector>

#include "comm/queue/operation_queue.h"
#include "comm/queue/waiting.h"

namespace trireme::detail {

// An operation between its issue and its end. Guarded by the owner's lock.
struct OperationQueue::Pending final : WorkState {
  std::shared_ptr<OperationQueue> owner;
  Call call;
  Steps steps;
  std::uint64_t record = 0;  // in the flight recorder
  bool begun = false;
  std::exception_ptr failure{};  // of one that is not at the head yet
  bool finished = false;
  Clock::time_point finished_at{};
  PollPatience patience;

  std::vector<int> missing_now() const {
    Condition* condition = finished || !steps.valid() ? nullptr : steps.waiting();
    return condition != nullptr ? condition->missing() : std::vector<int>{};
  }
  void wait(Milliseconds timeout) override { owner->wait(*this, timeout); }
  bool poll() override { return owner->poll(*this); }
  std::vector<int> missing() override { return owner->missing(*this); }
};

}  // namespace trireme::detail
