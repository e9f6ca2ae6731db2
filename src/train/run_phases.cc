#include "train/run_phases.h"

#include <utility>

#include "train/sync_choice.h"
#include "trireme/comm/tell.h"
#include "trireme/core/concat.h"
#include "trireme/core/environment.h"
#include "trireme/settings/settings_table.h"

namespace trireme::detail {
namespace {

SyncMode sync_mode(const TrainSettings& settings, std::int64_t every) {
  if (every == SyncChange::kExact || every == SyncChange::kMeasured) {
    return Exact{};
  }
  TrainSettings changed = settings;
  changed.sync_every = every;
  return std::visit([](const auto& mode) -> SyncMode { return mode; }, averaging_mode(changed));
}

// Those that the settings name. What is measured begins exactly, or goes on with what there is.
std::vector<SyncPhase> phases_of(const TrainSettings& settings,
                                 const std::vector<SyncChange>& changes) {
  std::vector<SyncPhase> phases;
  if (changes.empty() || changes.front().step > 0) {
    const bool measured = settings.sync == Synchronisation::kAutomatic;
    phases.push_back(
        {0, sync_mode(settings, measured ? SyncChange::kMeasured : settings.sync_every)});
  }
  for (const SyncChange& change : changes) {
    if (phases.empty() || change.every != SyncChange::kMeasured) {
      phases.push_back({change.step, sync_mode(settings, change.every)});
    }
  }
  return phases;
}

std::int64_t steps_of(const SyncMode& mode) {
  return std::visit(
      [](const auto& each) -> std::int64_t {
        if constexpr (requires { each.steps; }) {
          return each.steps;
        } else {
          return AutomaticSync::kExact;
        }
      },
      mode);
}

// "exact", "diloco 100".
std::string words_of(const SyncMode& mode) {
  std::string text = to_text(mode);
  if (const auto colon = text.find(':'); colon != std::string::npos) {
    text[colon] = ' ';
  }
  return text;
}

}  // namespace

RunPhases::RunPhases(const TrainSettings& settings,
                     std::shared_ptr<torch::nn::Module> module,
                     const Optimizer& optimizer,
                     const EngineOptions& engine,
                     std::shared_ptr<World> world,
                     Say say)
    : settings_(settings),
      world_(std::move(world)),
      say_(std::move(say)),
      changes_(sync_changes(settings)),
      engine_(std::make_unique<PhasedEngineBase>(
          std::move(module),
          optimizer,
          Phased{.phases = phases_of(settings, changes_),
                 .replicas = {.ranks = ranks_of_replica(settings)},
                 .states = settings.sync_states,
                 .engine = engine},
          world_)),
      automatic_(settings.sync_every) {}

std::int64_t RunPhases::averaged_every() const {
  return steps_of(engine_->mode());
}

bool RunPhases::may_choose() const {
  return settings_.sync == Synchronisation::kAutomatic && !world_->one_machine() &&
         engine_->replicas().count() > 1;
}

void RunPhases::begin() {
  if (settings_.sync == Synchronisation::kAutomatic) {
    const std::string now = words_of(engine_->mode());
    const bool scheduled = !changes_.empty() && changes_.front().step == 0 &&
                           changes_.front().every != SyncChange::kMeasured;
    say_(concat(
        "sync auto: {}, {}",
        {now,
         scheduled && !may_choose() ? concat("by the schedule{}",
                                             {engine_->replicas().count() > 1
                                                  ? ""
                                                  : "; there is one replica: nothing is averaged"})
         : may_choose()             ? concat("until measuring says something else, every {} steps",
                                 {settings_.sync_window})
         : world_->one_machine()
             ? std::string("since all ranks are on one machine, where exchanging gradients "
                           "costs next to nothing")
             : std::string("since there is one replica")}));
  }
}

// Whether what is measured decides: the schedule's last word of a step.
bool RunPhases::measures(std::int64_t step) const {
  bool measured = may_choose();
  for (const SyncChange& change : changes_) {
    if (change.step <= step) {
      measured = may_choose() && change.every == SyncChange::kMeasured;
    }
  }
  return measured;
}

std::string RunPhases::end_step(const Step& step) {
  const std::string before = words_of(engine_->mode());
  const std::int64_t steps = engine_->steps();
  ++measured_.steps;
  measured_.seconds += step.seconds;
  measured_.exchange_seconds += step.exchange_seconds;
  measured_.sent_bytes += step.network_bytes / world_->machines();
  measured_.averagings += step.averaged ? 1 : 0;
  std::string why;
  const bool window_ends = steps % settings_.sync_window == 0;
  if (measures(steps) && window_ends && 2 * measured_.steps >= settings_.sync_window) {
    why = decide(steps);
  }
  engine_->enter_next_phase();
  const std::string now = words_of(engine_->mode());
  if (now != before || window_ends) {
    measured_ = {};
  }
  if (now == before) {
    return "";
  }
  const std::string news =
      concat("step {}: {} to {}; {}", {steps, before, now, why.empty() ? "by the schedule" : why});
  say_(news);
  return news;
}

// Rank 0 decides for all.
std::string RunPhases::decide(std::int64_t step) {
  const std::int64_t now = steps_of(engine_->mode());
  if (automatic_.now() != now) {
    automatic_.set_now(now);
  }
  std::string text;
  if (world_->rank() == 0) {
    if (const auto decision = automatic_.decide(measured_)) {
      text = concat(decision->every, ";", decision->why);
    }
    if (text.empty() && !std::exchange(has_said_, true)) {
      say_(concat("step {}: stays {} so far; {}",
                  {step, words_of(engine_->mode()), automatic_.conditions()}));
    }
  }
  text = all_texts(*world_, text).front();
  const auto end = text.find(';');
  if (end == std::string::npos) {
    return "";
  }
  const std::int64_t every = *parse_integer(text.substr(0, end));
  automatic_.set_now(every);
  engine_->enter(sync_mode(settings_, every));
  return text.substr(end + 1);
}

std::string RunPhases::schedule() const {
  std::string text;
  for (const SyncPhase& phase : engine_->entered()) {
    const std::int64_t every = steps_of(phase.mode);
    text += concat(text.empty() ? "" : ",", phase.from, ":");
    text += every == AutomaticSync::kExact ? "exact" : std::to_string(every);
  }
  return text;
}

}  // namespace trireme::detail
