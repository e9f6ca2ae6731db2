// What a drill wants to know of an elastic job, and is told.

#include <numeric>

#include "launch/elastic_job.h"
#include "trireme/core/counted.h"
#include "trireme/core/error.h"
#include "trireme/core/index.h"

namespace trireme::detail {

void ElasticJob::set_drill(JobDrill* drill) {
  drill_ = drill;
  drill_->begin(fleet_);
}

DrillBook::Hands ElasticJob::drill_hands() {
  return {
      .scale = [this](int more) { return scale(local_.world_size() + more, "the drill"); },
      .objection = [this](int machine,
                          const DrillFault& fault) { return objection(machine, fault); },
      .part_of_world = [this](int machine) { return part_of_world(machine); },
      .say = say_,
  };
}

// The job would end with the launcher, or would wait for a machine that perhaps does not come back.
std::string ElasticJob::objection(int machine, const DrillFault& fault) const {
  const auto ranks_of = [](const Epochs::Machine& each) {
    return each.present && !each.leaves ? each.status.members + each.started_again : 0;
  };
  const std::vector<Epochs::Machine>& machines = epochs_->machines();
  if (is_ending_ || index(machine) >= machines.size()) {
    return "the job is ending";
  }
  if (ranks_of(machines[index(machine)]) == 0) {
    return concat("machine ", machine, " has no ranks now");
  }
  if (fault.kind == DrillKind::kStopLauncher && fault.seconds < elastic_.heartbeat_seconds) {
    return "";  // it is not lost
  }
  const int left = std::accumulate(machines.begin(),
                                   machines.end(),
                                   -ranks_of(machines[index(machine)]),
                                   [&](int sum, auto& each) { return sum + ranks_of(each); });
  if (left < elastic_.least) {
    return concat("{} would be left, where --elastic wants {}",
                  {counted(left, "rank"), elastic_.least});
  }
  return machine == launch_.node_rank && !epochs_->can_do_without(machine)
             ? "no other machine is there to lead the job"
             : "";
}

DrillBook::Hands::Part ElasticJob::part_of_world(int machine) const {
  DrillBook::Hands::Part part{.epoch = epochs_->epoch()};
  if (fleet_ != nullptr) {
    const std::vector<int>& ranks = fleet_->roster().ranks;
    part.first_rank = std::accumulate(ranks.begin(), ranks.begin() + machine, 0);
    part.ranks = ranks[index(machine)];
  }
  return part;
}

}  // namespace trireme::detail
