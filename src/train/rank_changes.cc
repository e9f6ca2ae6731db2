#include "train/rank_changes.h"

#include <algorithm>
#include <optional>

#include "trireme/comm/kept_memory.h"
#include "trireme/comm/launch_protocol.h"
#include "trireme/core/environment.h"
#include "trireme/core/random.h"
#include "trireme/core/world_history.h"

namespace trireme::detail {
namespace {

// Steps of a job count through all its folds.
constexpr int kStepBits = 40;

// One for the process: only what a launcher has started looks at it, and that has one training at
// a time.
std::int64_t g_fold = 0;
std::optional<RankChanges> g_ended;  // up to the end of the training before this one

RankChanges plus(RankChanges a, const RankChanges& b, int sign) {
  a.times += sign * b.times;
  a.lost += sign * b.lost;
  a.left += sign * b.left;
  a.joined += sign * b.joined;
  a.steps_again += sign * b.steps_again;
  return a;
}

RankChanges changes_of(const RankCounts& counts) {
  return {counts.times, counts.lost, counts.left, counts.joined, 0};
}

RankChanges told_so_far() {
  if (!launcher_keeps_memory()) {
    return {};
  }
  const WorldHistory& history = history_in(pulse());
  RankChanges told = changes_of(history.told);
  told.steps_again = history.again.load();
  return told;
}

// What is not of this training, but of folds before it.
RankChanges told_before() {
  if (g_ended || g_fold == 0 || !launcher_keeps_memory()) {
    return g_ended.value_or(RankChanges{});
  }
  return changes_of(history_in(pulse()).before);  // this process is of the fold's second world
}

// Never 0, which no job has.
std::int64_t number_of_job() {
  const auto name = env_string(kEnvJob);
  if (!name || !launcher_keeps_memory()) {
    return 0;
  }
  std::uint64_t number = 1;
  for (const char letter : *name) {
    number = mix(number, static_cast<std::uint64_t>(static_cast<unsigned char>(letter)));
  }
  return 1 + static_cast<std::int64_t>(number >> 8);
}

}  // namespace

void begin_fold(int fold) {
  g_fold = fold;
}

void begin_step_of_run(std::int64_t step) {
  if (launcher_keeps_memory()) {
    begin_step((g_fold << kStepBits) + step);
  }
}

void ChangesOfRun::begin() {
  before_ = plus({}, told_before(), -1);
  of_this_job_ = true;
}

void ChangesOfRun::go_on(const TrainProgress& kept) {
  const RankChanges told = told_so_far();
  of_this_job_ = kept.job != 0 && kept.job == number_of_job() && kept.told.times <= told.times;
  before_ = plus(kept.rank_changes, of_this_job_ ? kept.told : told_before(), -1);
}

void ChangesOfRun::meet_anew(int ranks_then, int ranks_now) {
  before_.times += 1;
  before_.left += std::max(0, ranks_then - ranks_now);
  before_.joined += std::max(0, ranks_now - ranks_then);
}

void ChangesOfRun::write_to(TrainProgress& progress) const {
  progress.job = number_of_job();
  progress.told = told_so_far();
  progress.rank_changes = plus(before_, progress.told, 1);
}

void ChangesOfRun::end() {
  g_ended = told_so_far();
}

}  // namespace trireme::detail
