#include "settings/sync_settings.h"

#include <algorithm>

#include "settings/step_schedule.h"
#include "trireme/compress/compressor.h"
#include "trireme/core/environment.h"
#include "trireme/core/error.h"
#include "trireme/settings/settings_table.h"
#include "trireme/settings/values.h"

namespace trireme {

namespace {

// Beyond all trainings, and far from where numbers of steps could not be added.
constexpr std::int64_t kMostSteps = 1'000'000'000'000;

}  // namespace

std::vector<SyncChange> sync_changes(const TrainSettings& settings) {
  detail::StepSchedule schedule{"sync_schedule",
                                "STEP:STEPS like 500:8, or STEP:exact",
                                0,
                                kMostSteps,
                                {{"exact", SyncChange::kExact}}};
  if (settings.sync == Synchronisation::kAutomatic) {
    schedule.expected = "STEP:STEPS like 500:8, STEP:exact or STEP:auto";
    schedule.words["auto"] = SyncChange::kMeasured;
  }
  std::vector<SyncChange> changes;
  for (const auto& [step, every] : detail::schedule_entries(schedule, settings.sync_schedule)) {
    changes.push_back({step, every});
  }
  return changes;
}

bool has_phases(const TrainSettings& settings) {
  // Of a run that is resumed with another one, the schedule is still there.
  if (settings.sync == Synchronisation::kExact || trains_stale(settings)) {
    return false;
  }
  return settings.sync == Synchronisation::kAutomatic ||
         std::ranges::any_of(sync_changes(settings), [](const SyncChange& change) {
           return change.every == SyncChange::kExact;
         });
}

int ranks_of_replica(const TrainSettings& settings) {
  if (settings.sync_group == "auto") {
    return settings.sync == Synchronisation::kAutomatic ? 0 : 1;
  }
  if (settings.sync_group == "rank" || settings.sync_group == "machine") {
    return settings.sync_group == "rank" ? 1 : 0;
  }
  const auto ranks = parse_integer(settings.sync_group);
  TRIREME_CHECK(ranks && *ranks >= 1 && *ranks <= 4096,
                "sync_group: expected auto, rank, machine or a number of ranks, found \"{}\"",
                {settings.sync_group});
  return static_cast<int>(*ranks);
}

bool trains_stale(const TrainSettings& settings) {
  return settings.sync == Synchronisation::kStale ||
         settings.sync == Synchronisation::kAsynchronous;
}

bool by_arrival(const TrainSettings& settings) {
  return settings.sync == Synchronisation::kAsynchronous ||
         (settings.sync == Synchronisation::kStale && settings.order == UpdateOrder::kArrival);
}

namespace detail {
namespace {

void check_stale_settings(const TrainSettings& s) {
  const auto refuse = [&](bool asked, const char* name, const std::string& why) {
    TRIREME_CHECK(
        !asked, "{}: {}, with sync = {}: leave it out", {name, why, value_text("sync", s)});
  };
  TRIREME_CHECK(s.servers < s.ranks,
                "servers: expected fewer than the {} ranks, of which at least one must compute, "
                "found {}",
                {s.ranks, s.servers});
  TRIREME_CHECK(s.replay.empty() || by_arrival(s),
                "replay: with order = clock the result is the same without: leave it out, or "
                "replay a run of order = arrival or sync = async");
  refuse(s.zero == 3, "zero", "stage 3 would compute with parameters of several versions");
  refuse(s.compress != "none" && s.compress != "auto",
         "compress",
         "gradients go to their owners as they are");
  refuse(s.round_weights != "none", "round_weights", "weights go to workers as they are");
  refuse(s.optimizer == "lamb" || s.optimizer == "adafactor",
         "optimizer",
         concat(s.optimizer, " looks at whole parameters, which no owner has"));
  refuse(s.optimizer == "muon" && s.servers > 0,
         "servers",
         "they divide by element, and muon updates whole parameters");
  refuse(s.histogram_every > 0, "histogram_every", "no rank has the gradients of all");
  refuse(s.sum_order != SumOrder::kChained,
         "sum_order",
         "a rank's micro-batches are always added up first");
  refuse(s.folds > 0 && !s.replay.empty(), "replay", "folds have no record");
}

}  // namespace

void choose_sync(TrainSettings& s) {
  if (s.sync_group == "auto") {
    s.sync_group = s.sync == Synchronisation::kAutomatic ? "machine" : "rank";
  }
  if (s.sync == Synchronisation::kExact) {
    return;
  }
  if (trains_stale(s)) {
    check_stale_settings(s);
  }
  TRIREME_CHECK(s.prune == 0,
                "prune: {}, with sync = {}: leave one of them out",
                {trains_stale(s) ? "servers update weights one owner at a time, and what is pruned "
                                   "depends on all of them"
                                 : "each replica would prune other weights, which averages would "
                                   "bring back",
                 value_text("sync", s)});
  if (s.sync_every == 0 && !trains_stale(s)) {
    s.sync_every = s.sync == Synchronisation::kDiLoCo   ? 100
                   : s.sync == Synchronisation::kGossip ? 1
                                                        : 32;
  }
  if (has_phases(s) && s.compress != "none" && s.compress != "auto") {
    const auto compressor = make_compressor(s.compress);
    TRIREME_CHECK(!compressor->format().feedback,
                  "compress: {} keeps what it leaves out by micro-batch, of which replicas have "
                  "others than all ranks together (exact phases of --sync {}): use a compressor "
                  "without feedback (bf16, fp16, int8, randk)",
                  {s.compress, value_text("sync", s)});
  }
  const int ranks = ranks_of_replica(s);
  TRIREME_CHECK(ranks == 0 || s.ranks % ranks == 0,
                "sync_group: expected a number that divides the {} ranks, found {}",
                {s.ranks, ranks});
  TRIREME_CHECK(
      s.balance == Balance::kEqual,
      "balance: {} deals micro-batches from rank to rank, which {} (sync = {}) "
      "do not exchange: leave it at equal",
      {value_text("balance", s), trains_stale(s) ? "ranks" : "replicas", value_text("sync", s)});
  TRIREME_CHECK(s.micro_batch != "auto",
                "micro_batch: auto is found out by all ranks together, which {} (sync = {}) "
                "are not: give a number",
                {trains_stale(s) ? "these" : "replicas", value_text("sync", s)});
}

}  // namespace detail
}  // namespace trireme
