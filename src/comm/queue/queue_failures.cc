// How a communicator ends: what the queue does when a peer is lost, calls something else, or a
// deadline passes.

#include <algorithm>
#include <thread>

#include "comm/queue/failure_report.h"
#include "comm/queue/pending.h"
#include "trireme/comm/window.h"

namespace trireme::detail {

std::string describe(const Call& call) {
  const Operation& op = call.operation;
  return concat(call.number != 0 ? concat("#", call.number, " ") : "",
                describe(op.kind, op.reduce, op.dtype, op.total, op.root, op.device.type));
}

CommError lost_rank(CommError::Reason reason, int rank, const std::string& name) {
  return CommError(reason,
                   rank,
                   concat(name,
                          reason == CommError::Reason::kPeerDied
                              ? " ended without leaving the world: it crashed or was killed"
                              : " left the world while others were still waiting for it"));
}

void check_works_on_devices(const Operation& operation) {
  switch (operation.kind) {
    case OpKind::kAllReduce:
    case OpKind::kReduceScatter:
    case OpKind::kAllGather:
    case OpKind::kBroadcast:
    case OpKind::kAllocate:
      return;
    default:
      throw ConfigError(
          concat("{}: memory of {} cannot be communicated by this operation, only by all_reduce, "
                 "reduce_scatter, all_gather and broadcast: copy it to the host first",
                 {op_name(operation.kind), device_name(operation.device)}));
  }
}

std::unique_ptr<Window> Backend::expose(Communicator& /*ranks*/,
                                        std::span<const std::byte> /*memory*/,
                                        const FindFailure& /*find_failure*/) {
  throw ConfigError("expose: ranks of one machine read each other's memory in place: use allocate");
}

void OperationQueue::throw_if_failed() const {
  if (failure_) {
    throw CommError(*failure_);
  }
}

// Another rank has found the reason first: then it is everyone's reason.
void OperationQueue::throw_if_told() {
  if (backend_->was_told()) {
    record_failure(backend_->told());
    backend_->spread(*failure_);
    throw_if_failed();
  }
}

void OperationQueue::say_waits_for(const std::vector<int>& missing) {
  const int rank = waiters_ == 0 || missing.empty() ? -1 : missing.front();
  // Said again as long as it is true: one that is stopped does not.
  if (rank >= 0 || said_to_wait_) {
    backend_->say_waits_for(rank);
  }
  said_to_wait_ = rank >= 0;
}

void OperationQueue::check(Goal& goal, const Deadline& deadline, bool look_at_ancestors) {
  const auto now = Clock::now();
  if (now - last_check_ < kCheckInterval || goal.reached()) {
    return;
  }
  last_check_ = now;
  throw_if_told();
  if (launcher_has_ended()) {
    fail(CommError(CommError::Reason::kAborted, -1, "the launcher of this job has ended"),
         goal.stuck());
  }
  auto missing = goal.missing();
  say_waits_for(missing);
  if (const auto loss = backend_->loss(missing)) {
    // What it sent before it went counts: look again before blaming it.
    if (advance() || goal.reached()) {
      return;
    }
    // One that has left may have done so because of what ends this one, too.
    if (look_at_ancestors && loss->reason() == CommError::Reason::kPeerLeft) {
      check_ancestors(true);
    }
    fail(*loss, goal.stuck());
  }
  if (look_at_ancestors) {
    check_ancestors(true);
  }
  // What nobody here can see: that a rank on a machine which is cut off is not waited for any more.
  if (const auto lost = options_.lost ? options_.lost() : std::nullopt) {
    fail(CommError(CommError::Reason::kPeerDied, -1, *lost), goal.stuck());
  }
  missing = goal.missing();
  if (deadline.passed_by(backend_->grace(missing)) && !advance()) {
    missing = backend_->behind(missing);
    throw_if_told();
    if (goal.reached()) {
      return;
    }
    std::string names = listed(missing, [&](int peer) { return backend_->name(peer); });
    const Pending* stuck = goal.stuck();
    if (stuck != nullptr && stuck->steps.waiting() != nullptr &&
        stuck->steps.waiting()->is_silent()) {
      names = concat("the GPU of {}, which has not done what was issued to it", {names});
    }
    fail(CommError(CommError::Reason::kTimeout,
                   missing.empty() ? -1 : missing.front(),
                   concat("waited {} s for {}{}",
                          {deadline.elapsed_seconds(),
                           names.empty() ? "its peers" : names,
                           backend_->one_machine()
                               ? ""
                               : ": stopped, busy elsewhere, or cut off from the network; trireme "
                                 "doctor shows which, --timeout allows more"})),
         goal.stuck());
  }
}

void OperationQueue::check_ancestors(bool looks) {
  for (const Ancestor& ancestor : ancestors_) {
    auto ended = ancestor.ending->get();
    const auto queue = !ended && looks ? ancestor.queue.lock() : nullptr;
    if (queue) {
      ended = queue->look_for_failure(*turns_);
    }
    if (!ended) {
      continue;
    }
    const auto& ranks = ancestor.ranks;
    const auto blamed = std::find(ranks.begin(), ranks.end(), ended->peer());
    const int peer = blamed == ranks.end() ? -1 : static_cast<int>(blamed - ranks.begin());
    // Its words are complete. Whoever waits for this rank here hears why it does not come.
    failure_.emplace(ended->reason(), peer, ended->what());
    ending_->set(*failure_);
    backend_->settle(*failure_);
    throw_if_failed();
  }
}

std::optional<CommError> OperationQueue::look_for_failure(const Turns& held) {
  Lock turn;
  if (turns_.get() != &held) {
    turn = turns_->try_enter();
    if (!turn.owns_lock()) {
      return std::nullopt;
    }
  }
  if (closed_) {
    return std::nullopt;
  }
  try {
    throw_if_failed();
    advance();
    throw_if_told();
    if (const auto loss = backend_->loss({})) {
      fail(*loss, nullptr);
    }
  } catch (const CommError& error) {
    return error;
  }
  return std::nullopt;
}

CommError OperationQueue::end(const CommError& error) {
  const Lock lock = enter();
  try {
    throw_if_failed();
    fail(cause_of(error), nullptr);
  } catch (const CommError& ended) {
    return ended;
  }
}

CommError OperationQueue::cause_of(const CommError& error) {
  if (error.reason() == CommError::Reason::kMismatch) {
    return error;
  }
  constexpr int kMostTurns = 100;
  for (int turn = 0; turn < kMostTurns && backend_->pump(); ++turn) {
  }
  throw_if_told();
  return backend_->loss({}).value_or(error);
}

std::optional<CommError> OperationQueue::find_failure(Milliseconds patience) {
  constexpr Milliseconds kPause{5};
  const Deadline deadline(patience);
  for (;;) {
    {
      const Lock lock = enter();
      if (const auto failure = look_for_failure(*turns_)) {
        return failure;
      }
    }
    if (deadline.passed()) {
      return std::nullopt;
    }
    std::this_thread::sleep_for(kPause);
  }
}

void OperationQueue::fail(const CommError& error, const Pending* stuck) {
  // A part has its errors told in the words of the communicator that it belongs to.
  const bool explained = error.reason() == CommError::Reason::kStopped;
  const std::string message =
      options_.part || explained
          ? error.what()
          : concat(stuck == nullptr ? "between operations" : describe(stuck->call),
                   ": ",
                   error.what(),
                   backend_->last_operations());
  const CommError full(error.reason(), error.peer(), message);
  if (!backend_->settle(full)) {
    throw_if_told();
  }
  record_failure(full);
  backend_->spread(full);
  throw CommError(*failure_);
}

void OperationQueue::record_failure(const CommError& error) {
  if (options_.part) {
    failure_ = error;
    return;
  }
  const int rank = backend_->world_rank(backend_->rank());
  const std::string who = options_.group.empty()
                              ? concat("rank ", backend_->rank())
                              : concat("rank ", rank, ", ", backend_->rank(), " of a group");
  std::string message = concat(who, " of ", backend_->size(), ": ", error.what());
  if (!options_.quiet) {
    if (error.reason() != CommError::Reason::kStopped) {
      message += concat(
          "; ",
          recorder_.write(options_.flight_folder, rank, backend_->size(), message, options_.group));
    }
    report_failure(
        rank,
        CommError(
            error.reason(), error.peer() < 0 ? -1 : backend_->world_rank(error.peer()), message));
  }
  failure_.emplace(error.reason(), error.peer(), message);
  ending_->set(*failure_);
}

}  // namespace trireme::detail
