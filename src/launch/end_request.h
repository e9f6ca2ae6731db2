#pragma once

#include <optional>

#include "trireme/core/deadline.h"

namespace trireme::detail {

// How often a job was asked to end. Signals close together are one request: GNU timeout, for one,
// signals the program it has started and then the whole group, which that program is a part of.
class EndRequest {
 public:
  enum class Kind { kFirst, kPartOfIt, kAgain };
  // A signal that asks for it has come.
  Kind take() {
    if (!until_) {
      until_.emplace(kOneRequest);
      return Kind::kFirst;
    }
    return until_->passed() ? Kind::kAgain : Kind::kPartOfIt;
  }

 private:
  static constexpr Milliseconds kOneRequest{1000};

  std::optional<Deadline> until_;  // another one is part of it
};

}  // namespace trireme::detail
