// Ranks that are slow for good, and ranks that stall now and then, on this machine: what waiting
// for them costs, and what it must cost.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>

#include "number_text.h"
#include "samples.h"
#include "scratch_folder.h"
#include "sync_bench.h"
#include "sync_mode.h"
#include "sync_rank.h"
#include "trireme/core/concat.h"
#include "trireme/core/table.h"
#include "trireme/launch/launcher.h"
#include "trireme/shard/dealing.h"
#include "turn_order.h"

namespace trireme::bench {
namespace {

constexpr int kRanks = 2;
constexpr double kSlower = 3;
constexpr int kSlowMicroBatches = 4;  // of a step: enough for shares of 3 and 1
constexpr double kProbability = 0.1;
constexpr double kStall = 10;
constexpr int kWindow = 20;  // steps after which --balance measured deals anew

// Runs tasks on this machine, in turns, and keeps what they took.
class PacedRuns {
 public:
  PacedRuns(const SyncPlace& place, const char* name) : place_(place), name_(name) {}

  // By what they are called: a task, and its ranks.
  void add(const std::string& system, const SyncTask& task, int ranks) {
    systems_.push_back(system);
    tasks_[system] = {task, ranks};
  }

  // Before the others, which are made from what it shows.
  int measure_first(const std::string& system) { return measure_one(system); }

  int measure() {
    for (int round = 0; round < place_.options.rounds; ++round) {
      std::fprintf(stderr, "%s, round %d of %d:", name_, round + 1, place_.options.rounds);
      for (const std::string& system : turn_order(systems_, round, place_.options.rounds)) {
        std::fprintf(stderr, " %s", system.c_str());
        if (const int code = measure_one(system); code != 0) {
          return code;
        }
      }
      std::fprintf(stderr, "\n");
    }
    return 0;
  }

  double ms(const std::string& system) const { return median(ms_.at(system)); }
  const nlohmann::json& last(const std::string& system) const { return last_.at(system); }

 private:
  int measure_one(const std::string& system) {
    const auto& [task, ranks] = tasks_.at(system);
    const std::string output = place_.scratch.file("pace.json");
    LaunchOptions job;
    job.ranks = ranks;
    job.threads = 1;
    job.command = task.command(output);
    const int code = launch(job);
    if (code == 0) {
      last_[system] = sync_rank_result(output);
      ms_[system].push_back(last_[system].at("ms").get<double>());
    }
    return code;
  }

  const SyncPlace& place_;
  const char* name_;
  std::vector<std::string> systems_;
  std::map<std::string, std::pair<SyncTask, int>> tasks_;
  std::map<std::string, std::vector<double>> ms_;
  std::map<std::string, nlohmann::json> last_;
};

SyncTask paced_task(const SyncPlace& place, const std::string& mode) {
  SyncTask task;
  task.mode = mode;
  task.small = true;
  task.timed = place.options.paced_steps;
  task.pace.ms = place.options.pace_ms;
  return task;
}

// One rank, one micro-batch in a step: what a micro-batch takes.
SyncTask alone_task(const SyncPlace& place, double factor) {
  SyncTask task = paced_task(place, "exact");
  task.timed = std::max(1, task.timed / 4);
  task.pace.slow_rank = 0;
  task.pace.factor = factor;
  return task;
}

// Only the first part of a micro-batch is paced, up to its loss. So that all of it takes so many
// times the `alone_ms` of an undisturbed one, the pace is changed by a little more.
double paced_times(const SyncPlace& place, double times, double alone_ms) {
  return 1 + (times - 1) * alone_ms / place.options.pace_ms;
}

// --- a rank that is slow for good

void report_slow_rank(const PacedRuns& runs,
                      const std::vector<std::string>& modes,
                      SyncFindings& findings) {
  const double fast = runs.ms("alone");
  const double slow = runs.ms("alone, slow");
  // Micro-batches in the time of one of the fast rank, where the ranks have so many of a step's.
  const auto allowed = [&](const std::vector<std::int64_t>& counts) {
    return kSlowMicroBatches * fast /
           std::max(static_cast<double>(counts[0]) * fast, static_cast<double>(counts[1]) * slow);
  };
  Table table(
      {"sync", "micro-batches", "ms per step", "throughput", "allowed", "reached", "of exact"});
  for (const std::string& mode : modes) {
    const bool balances = mode == "balance";
    const double throughput = kSlowMicroBatches * fast / runs.ms(mode);
    const double ceiling =
        allowed(balances ? deal_micro_batches(kSlowMicroBatches, {1 / fast, 1 / slow})
                         : std::vector<std::int64_t>(kRanks, kSlowMicroBatches / kRanks));
    const nlohmann::json& counts = runs.last(mode).at("micro_batches");
    table.add({balances ? "exact, --balance measured" : mode,
               detail::concat(counts[0].get<int>(), " + ", counts[1].get<int>()),
               number_text(runs.ms(mode)),
               number_text(throughput) + " / t",
               number_text(ceiling) + " / t",
               number_text(throughput / ceiling),
               number_text(runs.ms("exact") / runs.ms(mode))});
    findings.json.push_back({{"sync", mode},
                             {"micro_batches", counts},
                             {"ms", runs.ms(mode)},
                             {"fast_ms", fast},
                             {"slow_ms", slow},
                             {"throughput", throughput},
                             {"allowed", ceiling}});
  }
  findings.text = detail::concat(
      "A rank whose micro-batches take ",
      number_text(kSlower),
      " times as long in every step, by sleeping; 2 ranks on this machine, 4 micro-batches in a "
      "step\n",
      table.text(),
      "throughput: micro-batches in t = ",
      number_text(fast),
      " ms, the time of one on the fast rank; on the slow one it is ",
      number_text(slow),
      " ms, both measured alone. allowed: by those,\nwhere the slow rank is never idle, and the "
      "fast one waits for it. No order of the work can do more than 1/t + 1/(",
      number_text(slow / fast),
      " t) = ",
      number_text(1 + fast / slow),
      " / t.\nA bound on staleness does not help: once it is used up, everybody goes at the pace "
      "of "
      "the slow rank.\n");
}

// --- ranks that stall now and then

// What each step of each rank takes, in units of an undisturbed one.
std::vector<std::vector<double>> drawn_steps(const Pace& pace, int steps, double alone_ms) {
  std::vector<std::vector<double>> drawn(kRanks);
  for (int rank = 0; rank < kRanks; ++rank) {
    for (int step = 0; step < steps; ++step) {
      drawn[static_cast<std::size_t>(rank)].push_back(1 + pace.stall * pace.ms *
                                                              pace.stalls(rank, step) / alone_ms);
    }
  }
  return drawn;
}

void report_stalls(const SyncPlace& place,
                   const PacedRuns& runs,
                   const std::vector<std::string>& modes,
                   const Pace& pace,
                   SyncFindings& findings) {
  const int steps = place.options.paced_steps;
  const double alone = runs.ms("alone");
  const auto drawn = drawn_steps(pace, steps, alone);
  Table table({"sync", "ms per step", "step", "allowed", "reached", "of exact"});
  for (const std::string& text : modes) {
    const SyncMode mode = SyncMode::parse(text);
    const int bound = mode.name == "async" ? steps : mode.number;
    const double allowed = time_until_done(drawn, bound) / steps;
    const double measured = runs.ms(text) / alone;
    table.add({text,
               number_text(runs.ms(text)),
               number_text(measured) + " t",
               number_text(allowed) + " t",
               number_text(allowed / measured),
               number_text(runs.ms(text) / runs.ms("exact"))});
    findings.json.push_back({{"sync", text},
                             {"ms", runs.ms(text)},
                             {"alone_ms", alone},
                             {"step", measured},
                             {"allowed", allowed}});
  }
  const double stall = pace.stall * pace.ms / alone;
  findings.text =
      detail::concat("Stalls: a micro-batch takes ",
                     number_text(stall),
                     " t longer with a probability of ",
                     number_text(pace.probability),
                     ", by sleeping; 2 ranks on this machine, ",
                     steps,
                     " steps\n",
                     table.text(),
                     "t = ",
                     number_text(alone),
                     " ms: an undisturbed step of one rank alone. allowed: by the stalls that were "
                     "drawn, the same "
                     "for all. In the long run ranks\nthat wait in every step take ",
                     number_text(1 + stall * (1 - std::pow(1 - pace.probability, kRanks))),
                     " t, and ranks that never wait ",
                     number_text(1 + stall * pace.probability),
                     " t.\n");
}

}  // namespace

int measure_slow_rank(const SyncPlace& place, SyncFindings& findings) {
  const std::vector<std::string> modes = {
      "exact", "stale:" + std::to_string(place.options.staleness), "balance"};
  PacedRuns runs(place, "slow rank");
  runs.add("alone", alone_task(place, 1), 1);
  if (const int code = runs.measure_first("alone"); code != 0) {
    return code;
  }
  const double factor = paced_times(place, kSlower, runs.ms("alone"));
  runs.add("alone, slow", alone_task(place, factor), 1);
  for (const std::string& mode : modes) {
    SyncTask task = paced_task(place, mode);
    task.micro_batches = kSlowMicroBatches;
    task.pace.slow_rank = kRanks - 1;
    task.pace.factor = factor;
    task.warm_up = mode == "balance" ? kWindow : task.warm_up;
    runs.add(mode, task, kRanks);
  }
  const int code = runs.measure();
  if (code == 0) {
    report_slow_rank(runs, modes, findings);
  }
  return code;
}

int measure_stalls(const SyncPlace& place, SyncFindings& findings) {
  const std::vector<std::string> modes = {
      "exact", "stale:" + std::to_string(place.options.staleness), "async"};
  Pace pace;
  pace.ms = place.options.pace_ms;
  pace.probability = kProbability;
  PacedRuns runs(place, "stalls");
  runs.add("alone", alone_task(place, 1), 1);
  if (const int code = runs.measure_first("alone"); code != 0) {
    return code;
  }
  pace.stall = kStall * runs.ms("alone") / pace.ms;
  for (const std::string& mode : modes) {
    SyncTask task = paced_task(place, mode);
    task.pace = pace;
    runs.add(mode, task, kRanks);
  }
  const int code = runs.measure();
  if (code == 0) {
    report_stalls(place, runs, modes, pace, findings);
  }
  return code;
}

}  // namespace trireme::bench
