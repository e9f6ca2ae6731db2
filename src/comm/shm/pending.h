#pragma once

#include <memory>

#include "comm/shm/call.h"
#include "comm/shm/progress.h"
#include "comm/steps.h"
#include "comm/waiting.h"
#include "trireme/comm/work.h"

namespace trireme::detail {

// An operation between its issue and its end. Guarded by the owner's mutex.
struct Progress::Pending final : WorkState {
  std::shared_ptr<Progress> owner;
  Call call;
  Steps steps;
  std::uint64_t record = 0;  // in the flight recorder
  bool finished = false;
  PollPatience patience;

  bool is_collective() const {
    return call.operation.kind != OpKind::kSend && call.operation.kind != OpKind::kRecv;
  }
  std::vector<int> missing_now() const {
    Condition* condition = steps.waiting();
    return condition != nullptr ? condition->missing() : std::vector<int>{};
  }
  void wait(Milliseconds timeout) override { owner->wait(*this, timeout); }
  bool poll() override { return owner->poll(*this); }
  std::vector<int> missing() override { return owner->missing(*this); }
};

}  // namespace trireme::detail
