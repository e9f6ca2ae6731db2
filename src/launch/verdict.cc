#include "launch/verdict.h"

#include <algorithm>
#include <cstring>

#include <signal.h>
#include <sys/wait.h>

#include "trireme/core/error.h"

namespace trireme::detail {
namespace {

using Say = std::function<void(const std::string&)>;

bool means_usage(int status) {
  return WIFEXITED(status) && WEXITSTATUS(status) == kExitUsage;
}

void say_how_a_rank_failed(const Evidence& evidence, const JobEvent& cause, const Say& say) {
  const Fleet* fleet = evidence.fleet;
  say(concat("{}rank {} of {} (pid {}) {}",
             {fleet != nullptr ? concat(fleet->roster().name_of(cause.machine), ": ") : "",
              cause.rank,
              evidence.world_size,
              cause.pid,
              how_it_ended(cause.number)}));
  if (!cause.last_words.empty()) {
    say(concat("last words of rank ", cause.rank, ":"));
    for (const std::string& line : cause.last_words) {
      say("  " + line);
    }
  }
}

int blame_rank(const Evidence& evidence, const JobEvent& cause, const Say& say) {
  const RankProcess* spokesman = evidence.spokesman;
  // A rank that ended itself has said why. One that was killed has not, whatever it wrote before.
  const bool was_said = spokesman != nullptr && spokesman->failed() &&
                        WIFEXITED(spokesman->status) && !spokesman->errors.last_lines().empty();
  // What killed a rank is known here alone: the others only see that it is gone.
  const bool was_killed = WIFSIGNALED(cause.number) && cause.rank != 0;
  if (!was_said || was_killed) {
    say_how_a_rank_failed(evidence, cause, say);
  }
  if (evidence.fleet != nullptr) {
    for (const std::string& text : evidence.fleet->silent_machines()) {
      say(text);
    }
  }
  if (was_said) {
    // Where another rank has found the mistake first, rank 0 ends because it was told of it.
    return means_usage(spokesman->status) || means_usage(cause.number) ? kExitUsage
                                                                       : kExitRankFailed;
  }
  // Said by rank 0, on its own machine, or in the last words: rank 0 may not have got to its end.
  if (evidence.rank0_speaks && means_usage(cause.number)) {
    return kExitUsage;
  }
  return cause.rendezvous_timed_out ? kExitRendezvousTimedOut : kExitRankFailed;
}

}  // namespace

int say_verdict(const Evidence& evidence, const Say& say) {
  const Fleet* fleet = evidence.fleet;
  const JobEvent* cause = cause_of(evidence.events, [fleet](int rank) {
    return fleet != nullptr ? fleet->roster().machine_of(rank) : 0;
  });
  if (cause == nullptr) {
    return kExitOk;
  }
  if (cause->kind == JobEvent::Kind::kRankFailed) {
    return blame_rank(evidence, *cause, say);
  }
  const bool is_ours = fleet == nullptr || cause->machine == fleet->roster().machine;
  if (is_ours && cause->kind == JobEvent::Kind::kStopped) {
    say(concat("stopped by signal ", cause->number, " (", strsignal(cause->number), ")"));
    return 128 + cause->number;
  }
  if (is_ours && cause->kind == JobEvent::Kind::kTrouble) {
    return 128 + SIGPIPE;  // nobody reads what we would say
  }
  say(is_ours ? cause->text
              : concat(fleet->roster().name_of(cause->machine), " ", what_happened(*cause)));
  return kExitRankFailed;
}

void say_first_failure(const std::vector<JobEvent>& events,
                       int world_size,
                       const LaunchOptions& options,
                       const Say& say) {
  const auto failed = std::find_if(events.begin(), events.end(), [](const JobEvent& event) {
    return event.kind == JobEvent::Kind::kRankFailed;
  });
  // What is wrong with the call is rank 0's to say.
  const bool is_said =
      failed != events.end() && options.rank0_speaks && means_usage(failed->number);
  if (failed != events.end() && !is_said) {
    say(concat("rank {} of {} (pid {}) {}: waiting up to {} s for the other ranks to end",
               {failed->rank,
                world_size,
                failed->pid,
                how_it_ended(failed->number),
                options.end_seconds}));
  }
}

}  // namespace trireme::detail
