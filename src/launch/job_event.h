#pragma once

#include <functional>
#include <string>
#include <vector>

// What can end a job, and which of it is the cause.

namespace trireme::detail {

struct JobEvent {
  enum class Kind {
    kRankFailed,
    kStopped,  // a signal asked the launcher of a machine to end
    kGone,     // the launcher of a machine vanished
    kLost,     // a machine was not heard of for longer than the job waits
    kTrouble,  // a launcher cannot go on, and says why
    kGaveUp    // a launcher ends the job, and says why
  };
  Kind kind = Kind::kRankFailed;
  int machine = 0;
  int number = 0;    // kRankFailed: the status of waitpid; kStopped: the signal; kLost: seconds
  std::string text;  // kGone, kTrouble: why, may be empty for kGone

  // Of kRankFailed:
  int rank = -1;
  int pid = -1;
  int blamed = -1;  // the rank it fails because of; -1 where it is not another rank
  bool rendezvous_timed_out = false;
  bool stalled = false;  // its launcher has ended it, since it had not noticed a loss
  std::vector<std::string> last_words;
};

// One that is not of a rank.
inline JobEvent event_of(JobEvent::Kind kind,
                         int machine,
                         const std::string& text,
                         int number = 0) {
  JobEvent event;
  event.kind = kind;
  event.machine = machine;
  event.text = text;
  event.number = number;
  return event;
}

std::string pack_event(const JobEvent& event);
// False when the bytes are no event.
bool unpack_event(const std::string& bytes, JobEvent* event);

// The event to name: the first that is not a consequence, as a failure is of a rank that blames one
// which failed too, or whose machine is gone. `events` in the order in which they were seen;
// null where there are none.
const JobEvent* cause_of(const std::vector<JobEvent>& events,
                         const std::function<int(int)>& machine_of);

// "failed with exit code 7", from the status of waitpid.
std::string how_it_ended(int status);

// What happened to a machine, "is gone: ..."; not for kRankFailed.
std::string what_happened(const JobEvent& event);

}  // namespace trireme::detail
