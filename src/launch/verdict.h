#pragma once

#include <functional>
#include <string>
#include <vector>

#include "launch/fleet.h"
#include "launch/job_event.h"
#include "launch/rank_process.h"
#include "trireme/launch/launcher.h"

namespace trireme::detail {

// What the verdict on a job that has ended rests on.
struct Evidence {
  std::vector<JobEvent> events;  // in the order in which they were seen; none: all went well
  int world_size = 1;
  const Fleet* fleet = nullptr;  // null where the job had one machine
  // The process of rank 0 where it speaks for the job; null where it does not, or not here.
  const RankProcess* spokesman = nullptr;
  bool rank0_speaks = false;
};

// Says to whoever started the launcher what ended the job, if anything did; the exit code.
int say_verdict(const Evidence& evidence, const std::function<void(const std::string&)>& say);

// The verdict comes when all have ended. Where that takes long (a rank that computes something else
// does not notice; it has LaunchOptions::end_seconds), a rank that has died must not be a secret
// until then.
void say_first_failure(const std::vector<JobEvent>& events,
                       int world_size,
                       const LaunchOptions& options,
                       const std::function<void(const std::string&)>& say);

}  // namespace trireme::detail
