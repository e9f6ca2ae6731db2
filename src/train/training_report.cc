#include "trireme/train/training_report.h"

#include <algorithm>

#include "train/report_lines.h"
#include "train/steps_by_ranks.h"
#include "trireme/core/counted.h"
#include "trireme/core/error.h"
#include "trireme/observe/progress_line.h"
#include "trireme/settings/settings_table.h"
#include "trireme/settings/values.h"

namespace trireme {
namespace {

using detail::add_line;
using detail::concat;
using detail::counted;
using detail::format;
using detail::largest;
using detail::metric_text;
using detail::was_interrupted;

// "1.50 updates on average, 3 at most".
std::string staleness_text(const StaleUse& use) {
  double sum = 0;
  double count = 0;
  std::size_t most = 0;
  for (std::size_t updates = 0; updates < use.staleness.size(); ++updates) {
    const auto gradients = static_cast<double>(use.staleness[updates]);
    sum += static_cast<double>(updates) * gradients;
    count += gradients;
    most = gradients > 0 ? updates : most;
  }
  return concat("{} updates on average, {}{}",
                {format("%.2f", count > 0 ? sum / count : 0),
                 most,
                 most + 1 == StaleUse::kMost ? " or more" : " at most"});
}

// Who was behind: "rank 2, for 1.31 s; 0.02 s for all others".
std::string held_up_text(const StaleUse& use) {
  const auto most = std::ranges::max_element(use.held_up);
  double others = 0;
  for (auto rank = use.held_up.begin(); rank != use.held_up.end(); ++rank) {
    others += rank == most ? 0 : *rank;
  }
  return most == use.held_up.end()
             ? "nobody"
             : concat(
                   "rank {}, for {}; {} for all others",
                   {most - use.held_up.begin(), format("%.2f s", *most), format("%.2f s", others)});
}

// On one machine nothing is sent anywhere.
const char* how_exchanged(const TrainResult& result) {
  return result.machines > 1 ? "sent by a rank" : "passed on by a rank in memory";
}

// "8 (16 after step 50, 32 after step 80)".
std::string batches_text(const TrainSettings& settings) {
  std::string later;
  for (const BatchChange& change : batch_changes(settings)) {
    later += concat(later.empty() ? "" : ", ", change.batch, " after step ", change.step);
  }
  return concat(settings.batch, later.empty() ? "" : concat(" (", later, ")"));
}

}  // namespace

std::string summary_table(const TrainSettings& settings, const TrainResult& result) {
  std::string table = "summary\n";
  add_line(table, "model", concat(settings.model, " on ", settings.data));
  add_line(table,
           "ranks",
           concat(result.steps_by_ranks.empty()       ? concat(settings.ranks)
                  : result.steps_by_ranks.size() == 1 ? concat(result.steps_by_ranks[0].ranks)
                                                      : detail::steps_text(result.steps_by_ranks),
                  settings.zero > 0    ? concat(", ZeRO-", settings.zero)
                  : settings.ranks > 1 ? ", DDP"
                                       : "",
                  ", ",
                  value_text("precision", settings)));
  add_line(table,
           "steps",
           concat("{} in {}, batch {} of micro-batches of {}",
                  {result.steps,
                   duration_text(result.seconds),
                   batches_text(settings),
                   result.micro_batch}));
  if (was_interrupted(result)) {
    add_line(table, "interrupted", "the last step was finished and its weights are kept");
  }
  if (const RankChanges& changes = result.rank_changes; changes.times > 0) {
    add_line(table,
             "ranks changed",
             concat("{}: {} lost, {} left, {} joined; {} computed again",
                    {counted(changes.times, "time"),
                     changes.lost,
                     changes.left,
                     changes.joined,
                     counted(changes.steps_again, "step")}));
  }
  add_line(table, "training loss", measure_text(result.loss));
  for (const auto& [name, value] : result.evaluation.metrics) {
    add_line(table, "evaluation " + name, metric_text(name, value));
  }
  if (!result.evaluation.metrics.empty() && result.evaluated_step != result.steps) {
    add_line(table,
             "evaluated",
             concat("after step {}, and not after the last one", {result.evaluated_step}));
  }
  if (!result.best.empty() && result.best_step != result.steps) {
    add_line(table,
             "best",
             concat("{} {} in step {}",
                    {settings.best,
                     metric_text(settings.best, result.best.at(settings.best)),
                     result.best_step}));
  }
  add_line(
      table,
      "throughput",
      concat(count_text(result.per_second), result.counts_tokens ? " tokens/s" : " samples/s"));
  if (!settings.goal.empty()) {
    add_line(table,
             "goal " + settings.goal,
             result.goal_step > 0 ? concat("reached in step {} after {}",
                                           {result.goal_step, duration_text(result.goal_seconds)})
                                  : "not reached");
  }
  add_line(table, "processors per rank", format("%.2f", result.processor_share));
  add_line(table, "time in communication", format("%.1f %%", 100 * result.communication_share));
  if (const CompressionUse& use = result.compression; use.sent_bytes > 0) {
    add_line(table,
             "compressed gradients",
             concat("{}: {} {} instead of {}, {} of encoding{}",
                    {settings.compress,
                     megabytes_text(use.sent_bytes),
                     how_exchanged(result),
                     megabytes_text(use.exact_bytes),
                     format("%.2f s", use.seconds),
                     use.exact_parameters.empty()
                         ? ""
                         : concat("; ",
                                  counted(static_cast<std::int64_t>(use.exact_parameters.size()),
                                          "parameter"),
                                  " exactly (summary.json)")}));
  }
  if (const CompressionUse::Weights& use = result.compression.weights; use.received_bytes > 0) {
    add_line(table,
             "rounded weights",
             concat("{}: {} received by a rank instead of {}",
                    {settings.round_weights,
                     megabytes_text(use.received_bytes),
                     megabytes_text(use.exact_bytes)}));
  }
  if (result.pruned > 0) {
    add_line(table, "pruned", format("%.2f %% of the weights of matrices", 100 * result.pruned));
  }
  if (const OffloadUse& use = result.offload; use.sent_bytes > 0) {
    add_line(table,
             "offload",
             concat("{}: {} fetched by rank 0, {} sent, waited {}{}",
                    {settings.offload,
                     megabytes_text(use.fetched_bytes),
                     megabytes_text(use.sent_bytes),
                     format("%.2f s", use.wait_seconds),
                     settings.offload == "optimizer" ? ""
                     : use.in_memory  ? ", in memory: the folder is no disk's but a tmpfs"
                     : use.past_cache ? ", past the page cache"
                                      : ", through the page cache"}));
  }
  if (const CompressionUse::Check& check = result.compression.check; check.step > 0) {
    add_line(table,
             "compressed sum",
             concat("beside the exact one of step {}: error {}, cosine {}, {} of its descent",
                    {check.step,
                     format("%.2f %%", 100 * check.relative_error),
                     format("%.5f", check.cosine),
                     format("%.1f %%", 100 * check.descent)}));
  }
  if (result.stale) {
    add_line(table, "staleness", staleness_text(*result.stale));
    add_line(table, "waited for", held_up_text(*result.stale));
  } else if (settings.sync != Synchronisation::kExact) {
    add_line(table,
             "averaging",
             concat("{}: {} of {}, {} {}, {}",
                    {value_text("sync", settings),
                     counted(result.averaging.averagings, "averaging"),
                     counted(result.replicas, "replica"),
                     megabytes_text(result.averaging.sent_bytes),
                     how_exchanged(result),
                     format("%.2f s", result.averaging.seconds)}));
    if (!result.phases.empty()) {
      add_line(table,
               "phases",
               settings.sync == Synchronisation::kAutomatic
                   ? concat("{} (again: --sync local --sync-group {} --sync-schedule {})",
                            {result.phases, settings.sync_group, result.phases})
                   : result.phases);
    }
  }
  add_line(table, "time waiting for data", format("%.2f %%", 100 * result.data_share));
  if (result.save_share > 0) {
    add_line(table, "time for checkpoints", format("%.2f %%", 100 * result.save_share));
  }
  if (const MemoryUse* most = largest(result.memory)) {
    add_line(table,
             "memory of a rank",
             concat(megabytes_text(most->model_bytes()),
                    result.built_in_parts ? " for the model, built in parts" : " for the model",
                    settings.ranks > 1 && settings.zero > 0
                        ? concat("; DDP would take ", megabytes_text(result.memory.ddp_bytes))
                        : ""));
    for (int category = 0; category < kMemoryCategories; ++category) {
      const auto which = static_cast<MemoryCategory>(category);
      if (most->of(which) > 0) {
        add_line(table, concat("  ", memory_category_name(which)), megabytes_text(most->of(which)));
      }
    }
    add_line(table, "  activations, tensors", megabytes_text(result.tensor_bytes));
  }
  for (const std::int64_t rank : result.stragglers) {
    add_line(table, "slow", concat("rank ", rank));
  }
  return table;
}

}  // namespace trireme
