// The number of ranks of an elastic job, as somebody asks for another.

#include "launch/epochs.h"
#include "trireme/core/counted.h"
#include "trireme/core/error.h"

namespace trireme::detail {

std::string Epochs::scale(int ranks, const std::string& who) {
  const int before = members();
  if (ranks < options_.least || ranks > options_.most) {
    return concat("no: expected {} to {} ranks, as --elastic says, found {}",
                  {options_.least, options_.most, ranks});
  }
  if (ranks > capacity()) {
    return concat(
        "no: expected at most {} ranks, as the machines that are here have (-n), found {}",
        {capacity(), ranks});
  }
  if (forming_ || before == 0) {
    return "no: the ranks are just meeting anew: try again";
  }
  if (!any(&MachineStatus::keeps)) {
    return "no: expected ranks that keep their state between steps (ElasticState, trireme train "
           "without --folds), found nothing kept: try again after the first step";
  }
  if (ranks == before) {
    return concat("no: it has ", counted(before, "rank"), " already");
  }
  wanted_ = ranks;
  const std::string change = concat("going from {} to {}", {before, counted(ranks, "rank")});
  end_epoch(false, concat(change, ", as ", who, " asks"));
  hands_.say(concat(change, " after the step at hand, as ", who, " asks"));
  return concat(change, " after the step at hand");
}

}  // namespace trireme::detail
