#pragma once

#include <utility>
#include <vector>

#include "comm/queue/steps.h"
#include "device/event.h"

namespace trireme::detail {

// Work of this rank's GPU is done. Its failure is thrown, and ends the communicator.
class HasPassed final : public Condition {
 public:
  HasPassed(int rank, device::Event event) : rank_(rank), event_(std::move(event)) {}
  bool ready() override { return event_.passed(); }
  std::vector<int> missing() override { return {rank_}; }
  bool is_silent() const override { return true; }

 private:
  int rank_;
  device::Event event_;
};

}  // namespace trireme::detail
