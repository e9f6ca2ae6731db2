// How a communicator ends: what Progress does when a peer is lost, calls something else, or a
// deadline passes.

#include <algorithm>
#include <cstring>
#include <locale>
#include <sstream>

#include <sched.h>

#include "comm/failure_report.h"
#include "comm/fixed_text.h"
#include "comm/shm/matching.h"
#include "comm/shm/pending.h"
#include "comm/waiting.h"
#include "trireme/core/log.h"

namespace trireme::detail {
namespace {

constexpr Milliseconds kTimeToWrite{100};  // the reason into the control memory

std::string describe_call(const Call& call) {
  const Operation& op = call.operation;
  return concat(call.number != 0 ? concat("#", call.number, " ") : "",
                describe(op.kind, op.reduce, op.dtype, op.total, op.root));
}

}  // namespace

void Progress::throw_if_failed() const {
  if (failure_) {
    throw CommError(*failure_);
  }
}

void Progress::end(const CommError& error) {
  const std::lock_guard lock(mutex_);
  if (failure_) {
    return;
  }
  try {
    fail(error.reason(), error.peer(), error.what(), nullptr);
  } catch (const CommError& ended) {
    // Kept in failure_ for whoever waits; the caller already knows.
    log(LogLevel::kDebug, ended.what());
  }
}

void Progress::check(Goal& goal, const Deadline& deadline) {
  const auto now = Clock::now();
  if (now - last_check_ < kCheckInterval || goal.reached()) {
    return;
  }
  last_check_ = now;
  check_for_abort();
  check_peers(goal);
  if (deadline.passed() && !advance()) {
    std::string names;
    const auto missing = goal.missing();
    for (const int peer : missing) {
      names += concat(names.empty() ? "" : ", ", station_.name(peer));
    }
    fail(CommError::Reason::kTimeout,
         missing.empty() ? -1 : missing.front(),
         concat(
             "waited ", deadline.elapsed_seconds(), " s for ", names.empty() ? "its peers" : names),
         goal.stuck());
  }
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

void Progress::check_peers(Goal& goal) {
  if (launcher_has_ended()) {
    fail(CommError::Reason::kAborted, -1, "the launcher of this job has ended", goal.stuck());
  }
  // The dead before those who have left: one may have left because it found another dead.
  for (int peer = 0; peer < station_.size(); ++peer) {
    if (peer == station_.rank() || !station_.has_ended(peer) || station_.has_left(peer)) {
      continue;
    }
    // What it published before it went counts: look again before blaming it.
    if (advance() || goal.reached()) {
      return;
    }
    fail(CommError::Reason::kPeerDied,
         peer,
         concat(station_.plain_name(peer),
                " ended without leaving the world: it crashed or was killed"),
         goal.stuck());
  }
  for (int peer = 0; peer < station_.size(); ++peer) {
    if (peer == station_.rank() || !station_.has_left(peer)) {
      continue;
    }
    if (advance() || goal.reached()) {
      return;
    }
    // In good order; it is missed only by those who wait for it.
    const auto missing = goal.missing();
    if (std::find(missing.begin(), missing.end(), peer) != missing.end()) {
      fail(CommError::Reason::kPeerLeft,
           peer,
           concat(station_.plain_name(peer),
                  " left the world while others were still waiting for it"),
           goal.stuck());
    }
  }
}

void Progress::fail(CommError::Reason reason, int blamed, const std::string& what, Pending* stuck) {
  std::string message =
      concat(stuck == nullptr ? "between operations" : describe_call(stuck->call), ": ", what);
  message += "; last operations:";
  for (int peer = 0; peer < station_.size(); ++peer) {
    const std::uint64_t issued = station_.control().rank(peer).issued.load();
    message +=
        concat(peer == 0 ? " " : ", ", "rank ", peer, " ", describe_slot(station_, peer, issued));
  }
  AbortRecord& record = station_.control().header().abort;
  std::uint32_t none = 0;
  const bool found_first = record.state.compare_exchange_strong(none, 1);
  if (!found_first) {
    // The first reason is everyone's: those who found it may have left meanwhile, and would seem to
    // be this one's. Whoever writes it is done at once, unless it dies there.
    const Deadline patience(kTimeToWrite);
    while (record.state.load(std::memory_order_acquire) != 2 && !patience.passed()) {
      sched_yield();
    }
    check_for_abort();
  } else {
    record.reporter = station_.rank();
    record.blamed = blamed;
    record.reason = static_cast<std::int32_t>(reason);
    shortened(message, sizeof(record.message) - 1).copy(record.message, sizeof(record.message) - 1);
    record.state.store(2, std::memory_order_seq_cst);
    station_.ring_all();
  }
  record_failure(CommError(
      reason, blamed, concat("rank ", station_.rank(), " of ", station_.size(), ": ", message)));
  if (found_first && !options_.quiet) {
    write_summary(message);
  }
  throw CommError(*failure_);
}

void Progress::record_failure(const CommError& error) {
  if (options_.quiet) {
    failure_ = error;
    return;
  }
  const std::string record =
      recorder_.write(options_.flight_folder, station_.rank(), station_.size(), error.what());
  failure_.emplace(error.reason(), error.peer(), concat(error.what(), "; ", record));
  report_failure(station_.rank(), *failure_);
}

// Written by the rank that found the failure, for all ranks: the dead cannot write their own.
void Progress::write_summary(const std::string& message) const {
  std::ostringstream text;
  text.imbue(std::locale::classic());
  text << message << "\n";
  for (int peer = 0; peer < station_.size(); ++peer) {
    const RankBlock& block = station_.control().rank(peer);
    const std::uint64_t issued = block.issued.load();
    const std::uint32_t in_flight = sequence_of(station_, issued) - block.completed.load();
    text << station_.name(peer) << ": issued " << describe_slot(station_, peer, issued)
         << ", completed #" << issued - in_flight << "\n";
  }
  options_.flight_folder.write_or_warn("flight-summary.txt", text.str());
}

}  // namespace trireme::detail
