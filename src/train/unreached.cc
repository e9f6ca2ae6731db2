#include "train/unreached.h"

#include "trireme/core/counted.h"
#include "trireme/core/error.h"
#include "trireme/settings/values.h"

namespace trireme::detail {

std::vector<std::string> unreached(const TrainSettings& s, std::int64_t steps) {
  std::vector<std::string> lines;
  const std::string run = concat("the run has ", counted(steps, "step"));
  if (s.warm_up >= steps) {
    lines.push_back(concat("warning: warm_up is {}, but {}: the learning rate does not reach {}",
                           {s.warm_up, run, s.lr}));
  }
  for (const BatchChange& change : batch_changes(s)) {
    if (change.step >= steps) {
      lines.push_back(
          concat("warning: batch_schedule: {}:{} and what follows it is never reached: {}",
                 {change.step, change.batch, run}));
      break;
    }
  }
  // Of a schedule of averagings, the first entry may come early.
  if (s.sync != Synchronisation::kExact && s.sync_schedule.empty() && s.sync_every > steps) {
    lines.push_back(
        concat("warning: sync_every is {}, but {}: its replicas are never averaged while they "
               "train, only for what is evaluated and saved",
               {s.sync_every, run}));
  }
  return lines;
}

}  // namespace trireme::detail
