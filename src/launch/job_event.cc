#include "launch/job_event.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include <sys/wait.h>

#include "comm/rendezvous/packing.h"
#include "trireme/core/error.h"

namespace trireme::detail {
namespace {

bool is_consequence(const JobEvent& event,
                    const std::vector<JobEvent>& events,
                    const std::function<int(int)>& machine_of) {
  if (event.kind != JobEvent::Kind::kRankFailed || event.blamed < 0 || event.blamed == event.rank) {
    return false;
  }
  return std::any_of(events.begin(), events.end(), [&](const JobEvent& other) {
    return other.kind == JobEvent::Kind::kRankFailed ? other.rank == event.blamed
                                                     : other.machine == machine_of(event.blamed);
  });
}

}  // namespace

std::string pack_event(const JobEvent& event) {
  return Packer()
      .number(static_cast<int>(event.kind))
      .number(event.machine)
      .number(event.number)
      .text(event.text)
      .number(event.rank)
      .number(event.pid)
      .number(event.blamed)
      .number(event.rendezvous_timed_out ? 1 : 0)
      .number(event.stalled ? 1 : 0)
      .texts(event.last_words)
      .take();
}

bool unpack_event(const std::string& bytes, JobEvent* event) {
  Unpacker fields(bytes);
  event->kind =
      static_cast<JobEvent::Kind>(fields.number_in(0, static_cast<int>(JobEvent::Kind::kGaveUp)));
  event->machine = fields.number_in(0, kAny);
  event->number = fields.number_in(0, kAny);
  event->text = fields.text();
  event->rank = fields.number_in(-1, kAny);
  event->pid = fields.number_in(-1, kAny);
  event->blamed = fields.number_in(-1, kAny);
  event->rendezvous_timed_out = fields.number_in(0, 1) != 0;
  event->stalled = fields.number_in(0, 1) != 0;
  event->last_words = fields.texts();
  return fields.complete();
}

const JobEvent* cause_of(const std::vector<JobEvent>& events,
                         const std::function<int(int)>& machine_of) {
  if (events.empty()) {
    return nullptr;
  }
  const auto found = std::find_if(events.begin(), events.end(), [&](const JobEvent& event) {
    return !is_consequence(event, events, machine_of);
  });
  return found == events.end() ? &events.front() : &*found;
}

std::string how_it_ended(int status) {
  if (WIFSIGNALED(status)) {
    return concat("was killed by signal {} ({})", {WTERMSIG(status), strsignal(WTERMSIG(status))});
  }
  return concat("failed with exit code ", WEXITSTATUS(status));
}

std::string what_happened(const JobEvent& event) {
  switch (event.kind) {
    case JobEvent::Kind::kStopped:
      return concat("was stopped by signal ", event.number, " (", strsignal(event.number), ")");
    case JobEvent::Kind::kGone:
      return event.text.empty()
                 ? "is gone: its launcher was killed or the machine went down"
                 : concat("is gone: the connection to its launcher broke (", event.text, ")");
    case JobEvent::Kind::kLost:
      return concat("has not been heard from for ",
                    event.number,
                    " s: its launcher is stopped, or the network in between is cut");
    case JobEvent::Kind::kTrouble:
    case JobEvent::Kind::kGaveUp:
    case JobEvent::Kind::kRankFailed:
      break;
  }
  return event.text;
}

}  // namespace trireme::detail
