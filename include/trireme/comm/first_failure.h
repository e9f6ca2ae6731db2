#pragma once

#include <exception>
#include <optional>
#include <string>

#include "trireme/comm/communicator.h"
#include "trireme/core/error.h"

namespace trireme {

// What the first rank that failed has to say.
struct RankFailure {
  int rank = 0;
  std::string reason;
};

// Lets all ranks know of a failure that only some have seen, so that all throw and none waits for
// one that has. `mine` is empty if this rank has not failed. Collective.
std::optional<RankFailure> first_failure(Communicator& ranks, const std::string& mine);

// Does something that may fail on some ranks only, such as reading files, and throws on all of them
// if it does: the original error where it failed, a CheckpointError that names the rank elsewhere.
// Collective.
template <class Action>
void on_all_ranks(Communicator& ranks, const Action& action) {
  std::string problem;
  std::exception_ptr thrown;
  try {
    action();
  } catch (const Error& error) {
    problem = error.what();
    thrown = std::current_exception();
  }
  if (const auto failure = first_failure(ranks, problem)) {
    if (thrown) {
      std::rethrow_exception(thrown);
    }
    throw CheckpointError("", -1, detail::concat("rank ", failure->rank, ": ", failure->reason));
  }
}

}  // namespace trireme
