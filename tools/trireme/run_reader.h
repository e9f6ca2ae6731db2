#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "exchange_costs.h"

// What `trireme train` leaves in the folder of a run: config.json, metrics.jsonl, evaluation.csv
// and summary.json. Everything here throws ConfigError that names the file, the line where there is
// one, what was expected and what was found.

namespace trireme::tools {

// One number over the steps; those that were not finite are NaN.
struct Series {
  std::vector<double> steps;
  std::vector<double> values;
};

// metrics.jsonl by name. A run that was resumed goes back to its last checkpoint: what it had
// logged after that is replaced. An incomplete last line, of a run that was killed, is left out.
struct RunLog {
  std::map<std::string, Series> training;
  std::map<std::string, Series> evaluation;
  // That do not count for the throughput, where summary.json says so.
  std::optional<std::int64_t> untimed_steps;
};
RunLog read_log(const std::string& folder);
bool has_log(const std::string& folder);

// evaluation.csv, ordered by sample.
struct Evaluation {
  bool text = false;  // samples are windows of text
  std::vector<std::int64_t> samples;
  std::vector<double> targets;      // of text: tokens in the window
  std::vector<double> predictions;  // of text: tokens that were right
  std::vector<double> losses;
  // Of what the samples hold, from summary.json; empty where it is not known, as of older runs.
  std::string fingerprint;
};
// Nothing where the run has not written one.
std::optional<Evaluation> read_evaluation(const std::string& folder);

// config.json and summary.json.
struct Run {
  std::string folder;
  std::map<std::string, std::string> settings;
  std::string status;
  std::int64_t steps = 0;
  std::map<std::string, double> metrics;
  std::vector<std::map<std::string, double>> folds;  // of a cross-validated run, as far as it came
  std::int64_t planned_folds = 0;                    // as many as it was to have; 0: none
  std::string machine;  // "2 x Intel(R) Xeon(R)"; empty where it is not known, as of older runs
  std::optional<double> rank_bytes;
  std::optional<double> communication_share;
  // Of an elastic run: how often its ranks changed, and how many were lost, left and joined.
  struct RankChanges {
    std::int64_t times = 0;
    std::int64_t lost = 0;
    std::int64_t left = 0;
    std::int64_t joined = 0;
  };
  RankChanges rank_changes{};
  // Where it was trained on more than one number of ranks: "2 in steps 1 to 40, 3 in step 41".
  std::string steps_by_ranks{};
  ExchangeCosts exchange{};

  // Those with results, numbered from 0: one that was interrupted has none.
  std::vector<std::size_t> finished_folds() const;
};
Run read_run(const std::string& folder);

// The folders that hold a run's logs: its own, or those of its folds.
std::vector<std::string> log_folders(const std::string& folder);

}  // namespace trireme::tools
