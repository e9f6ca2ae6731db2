#include "trireme/comm/work.h"

#include "trireme/core/error.h"
#include "trireme/core/log.h"

namespace trireme {

Work::~Work() {
  if (!state_) {
    return;
  }
  try {
    if (!state_->poll()) {
      log(LogLevel::kWarning,
          "a Work was dropped before it was finished and nobody waited for it: the operation "
          "continues, but its failure would go unnoticed; keep the Work and call wait()");
    }
  } catch (const std::exception& error) {
    log(LogLevel::kWarning, detail::concat("a Work that nobody waited for failed: ", error.what()));
  }
}

void Work::wait() {
  wait(Milliseconds(0));
}

void Work::wait(Milliseconds timeout) {
  if (state_) {
    // First: where the wait throws, somebody has heard of the failure, and the destructor is
    // silent.
    const auto state = std::move(state_);
    state_.reset();
    state->wait(timeout);
  }
}

bool Work::done() {
  if (state_ && state_->poll()) {
    state_.reset();
  }
  return !state_;
}

std::vector<int> Work::missing() const {
  return state_ ? state_->missing() : std::vector<int>{};
}

}  // namespace trireme
