#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <CLI/App.hpp>
#include <nlohmann/json.hpp>

#include "pace.h"

// What the ranks do that `trireme bench sync` starts.

namespace trireme::bench {

struct SyncTask {
  std::string mode = "exact";  // see sync_mode.h
  bool small = false;          // a GPT of 0.1 M parameters; else that of `trireme bench compress`
  std::int64_t micro_batches = 0;  // of a step; 0: one for each rank
  int warm_up = 2;
  int timed = 4;
  Pace pace{};

  // Hidden flags, those of command().
  void add_to(CLI::App& app);
  // This program as a rank; rank 0 writes what it has measured to `output`.
  std::vector<std::string> command(const std::string& output) const;
};

int run_sync_rank(const SyncTask& task, const std::string& output);

// What it has written: "ms" (of a step, in the mean), "parameters", "ledger_bytes" and
// "interface_bytes" (sent in a step by one rank, and by its machine), "micro_batches" (of a step,
// by rank) and "system".
nlohmann::json sync_rank_result(const std::string& output);

}  // namespace trireme::bench
