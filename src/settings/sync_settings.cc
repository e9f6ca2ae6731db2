#include "settings/sync_settings.h"

#include "trireme/core/environment.h"
#include "trireme/core/error.h"
#include "trireme/settings/settings_table.h"
#include "trireme/settings/values.h"

namespace trireme {

std::vector<SyncChange> sync_changes(const TrainSettings& settings) {
  std::vector<SyncChange> changes;
  for (const std::string& text : settings.sync_schedule) {
    const auto colon = text.find(':');
    const auto step = parse_integer(text.substr(0, colon));
    const auto every =
        colon == std::string::npos ? std::nullopt : parse_integer(text.substr(colon + 1));
    TRIREME_CHECK(step && every && *step >= 0 && *every >= 1,
                  "sync_schedule: expected STEP:STEPS like 500:8, found \"{}\"",
                  {text});
    TRIREME_CHECK(changes.empty() || changes.back().step < *step,
                  "sync_schedule: expected increasing steps, found {} after {}",
                  {*step, changes.back().step});
    changes.push_back({*step, *every});
  }
  return changes;
}

int ranks_of_replica(const TrainSettings& settings) {
  if (settings.sync_group == "rank" || settings.sync_group == "machine") {
    return settings.sync_group == "rank" ? 1 : 0;
  }
  const auto ranks = parse_integer(settings.sync_group);
  TRIREME_CHECK(ranks && *ranks >= 1 && *ranks <= 4096,
                "sync_group: expected rank, machine or a number of ranks, found \"{}\"",
                {settings.sync_group});
  return static_cast<int>(*ranks);
}

namespace detail {

void choose_sync(TrainSettings& s) {
  if (s.sync == "exact") {
    return;
  }
  if (s.sync_every == 0) {
    s.sync_every = s.sync == "local" ? 32 : s.sync == "diloco" ? 100 : 1;
  }
  sync_changes(s);
  const int ranks = ranks_of_replica(s);
  TRIREME_CHECK(ranks == 0 || s.ranks % ranks == 0,
                "sync_group: expected a number that divides the {} ranks, found {}",
                {s.ranks, ranks});
  TRIREME_CHECK(s.balance == Balance::kEqual,
                "balance: {} deals micro-batches from rank to rank, which replicas (sync = {}) "
                "do not exchange: leave it at equal",
                {value_text("balance", s), s.sync});
  TRIREME_CHECK(s.micro_batch != "auto",
                "micro_batch: auto is found out by all ranks together, which replicas (sync = {}) "
                "are not: give a number",
                {s.sync});
}

}  // namespace detail
}  // namespace trireme
