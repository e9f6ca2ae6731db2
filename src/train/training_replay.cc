// A training that follows the record of another one (settings.replay).

#include <algorithm>

#include "train/training.h"
#include "trireme/core/counted.h"
#include "trireme/core/error.h"

namespace trireme::detail {
namespace {

bool begins_after(const Replayed& replayed, std::int64_t step) {
  return std::ranges::binary_search(replayed.beginnings, step);
}

}  // namespace

bool Training::may_save() const {
  return !runner_.replayed() || is_replayed() ||
         begins_after(*runner_.replayed(), runner_.next_step());
}

// Note [where a replay begins anew]
// After a save, all ranks of a stale run go on from the newest weights: that is what its record
// calls a beginning. The run may have been saved where this one is not, as after Ctrl-C, or not
// where this one would be, so the record decides, and not settings.save_every.
void Training::save_if_due() {
  const std::int64_t step = runner_.next_step();
  if (step == runner_.steps()) {
    return;  // the last one is finish()'s
  }
  if (checkpoints_.is_due(step) && may_save()) {
    save();
  } else if (runner_.replayed() && begins_after(*runner_.replayed(), step)) {
    runner_.go_on_from_newest();
  }
}

bool Training::is_replayed() const {
  const auto& replayed = runner_.replayed();
  return replayed && runner_.next_step() >= replayed->steps;
}

bool Training::has_replayed() {
  if (!is_replayed()) {
    return false;
  }
  const auto& replayed = runner_.replayed();
  say(concat(
      "stopping: the record of the run in {} ends after {} of {}: it was interrupted or "
      "killed there, or is still training{}",
      {settings_.replay,
       counted(replayed->steps, "step"),
       runner_.steps(),
       replayed->cut ? "; some of its ranks were further, and as the others saw what is left "
                       "out here, the last steps may have other bits"
                     : ""}));
  return true;
}

}  // namespace trireme::detail
