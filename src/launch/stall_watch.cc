#include "launch/stall_watch.h"

#include <signal.h>

#include "trireme/core/error.h"
#include "trireme/core/proc_files.h"

namespace trireme::detail {
namespace {

// A look comes at least every half second, unless this process was stopped, or the whole machine:
// then nobody else has run, either.
constexpr std::chrono::seconds kLongestBetweenLooks{3};

// Somebody looks into it, and it stands still for that.
bool has_debugger(pid_t pid) {
  const std::string tracer = proc_field(concat("/proc/", pid, "/status"), "TracerPid");
  return !tracer.empty() && tracer != "0";
}

}  // namespace

StallWatch::StallWatch(double seconds, bool ends, std::function<void(const std::string&)> say)
    : patience_(seconds), ends_(ends), say_(std::move(say)) {}

bool StallWatch::is_excused(const RankProcess& rank) const {
  const PulsePage& page = rank.pulse.page();
  // Of those that a signal has stopped, an elastic job has a rule of its own (--heartbeat).
  return page.engines.load(std::memory_order_relaxed) == 0 ||
         page.waiting.load(std::memory_order_relaxed) > 0 || rank.asks || rank.told_to_end ||
         (ends_ && rank.stopped);
}

void StallWatch::look(const std::vector<RankProcess>& ranks, int world_size, bool held_up) {
  const Time now = std::chrono::steady_clock::now();
  const bool was_away = held_up || now - last_look_ > kLongestBetweenLooks;
  last_look_ = now;
  for (const RankProcess& rank : ranks) {
    if (!rank.is_member()) {
      seen_.erase(rank.child.pid);
      continue;
    }
    const PulsePage& page = rank.pulse.page();
    const std::uint64_t marks = page.marks.load(std::memory_order_relaxed);
    const auto [entry, is_new] = seen_.try_emplace(rank.child.pid);
    Seen& seen = entry->second;
    if (is_new || was_away || marks != seen.marks || is_excused(rank)) {
      seen = {marks, now};
      continue;
    }
    const std::chrono::duration<double> still = now - seen.since;
    if (seen.told || still < patience_) {
      continue;
    }
    if (has_debugger(rank.child.pid)) {
      seen.since = now;
      continue;
    }
    seen.told = true;
    const auto phase = static_cast<PulsePhase>(page.phase.load(std::memory_order_relaxed));
    say_(concat(
        "rank {} of {} (pid {}) has made no progress for {} s, {}in step {}; the last thing it "
        "did: "
        "it {}{}",
        {rank.rank,
         world_size,
         rank.child.pid,
         patience_.count(),
         rank.stopped ? "stopped by a signal, " : "",
         page.step.load(std::memory_order_relaxed) + 1,
         pulse_phase_text(phase),
         ends_ ? ": ending it"
               : "; the others wait for it until --timeout (Engine::alive() tells a long step "
                 "from a stall)"}));
    if (ends_) {
      rank.send_signal(SIGKILL);
    }
  }
}

}  // namespace trireme::detail
