#include "train/unreached.h"

#include <utility>

#include "trireme/core/counted.h"
#include "trireme/core/error.h"
#include "trireme/settings/settings_table.h"
#include "trireme/settings/values.h"

namespace trireme::detail {
namespace {

std::string about_averaging(const TrainSettings& s,
                            const Averaging& averaging,
                            int replicas,
                            std::int64_t steps,
                            const std::string& run) {
  const bool never = averaging.use().averagings == 0 && averaging.next() > steps;
  if (replicas == 1 && s.sync != Synchronisation::kDiLoCo) {
    return concat("warning: sync is {}, but there is one replica: nothing is averaged",
                  {value_text("sync", s)});
  }
  if (!never) {
    return "";
  }
  return concat("warning: the first {} comes after step {}, but {}: {}",
                {replicas == 1 ? "outer step" : "averaging",
                 averaging.next(),
                 run,
                 replicas == 1 ? "it is never taken"
                               : "its replicas are never averaged while they train, only for what "
                                 "is evaluated and saved"});
}

}  // namespace

std::vector<std::string> unreached(const TrainSettings& s,
                                   const Extent& extent,
                                   const Averaging* averaging,
                                   int replicas) {
  const std::int64_t steps = extent.steps;
  if (extent.done >= steps) {
    return {};  // nothing is trained
  }
  std::vector<std::string> lines;
  const std::string run =
      concat("the run has {}{}",
             {counted(steps, "step"),
              extent.done > 0 ? concat(", of which ", steps - extent.done, " are left") : ""});
  if (s.warm_up >= steps) {
    lines.push_back(concat("warning: warm_up is {}, but {}: the learning rate does not reach {}",
                           {s.warm_up, run, s.lr}));
  }
  if (s.prune > 0 && s.prune_end > steps) {
    lines.push_back(
        concat("warning: prune_end is {}, but {}: less than {} of the weights is pruned",
               {s.prune_end, run, s.prune}));
  }
  for (const BatchChange& change : batch_changes(s)) {
    if (change.step >= steps) {
      lines.push_back(
          concat("warning: batch_schedule: {}:{} and what follows it is never reached: {}",
                 {change.step, change.batch, run}));
      break;
    }
  }
  for (const SyncChange& change : has_phases(s) ? sync_changes(s) : std::vector<SyncChange>()) {
    if (change.step >= steps) {
      lines.push_back(
          concat("warning: sync_schedule: the phase from step {} on and what follows it is never "
                 "reached: {}",
                 {change.step, run}));
      break;
    }
  }
  if (averaging != nullptr) {
    lines.push_back(about_averaging(s, *averaging, replicas, steps, run));
  }
  return lines;
}

std::string unevaluated(const TrainSettings& s) {
  const TrainSettings usual;
  std::vector<std::string> names;
  for (const auto& [name, is_asked] : {std::pair("eval_every", s.eval_every != usual.eval_every),
                                       {"best", s.best != usual.best},
                                       {"goal", s.goal != usual.goal}}) {
    if (is_asked) {
      names.emplace_back(name);
    }
  }
  return names.empty() ? ""
                       : concat(
                             "warning: there is nothing to evaluate on, so that {} no effect: give "
                             "--eval-data FILE, or an --eval-fraction above 0",
                             {concat(enumerated(names), names.size() == 1 ? " has" : " have")});
}

}  // namespace trireme::detail
