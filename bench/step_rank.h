#pragma once

#include <string>
#include <vector>

#include <CLI/App.hpp>

#include "step_settings.h"
#include "trireme/parallel/engine.h"

// What the ranks do that `trireme bench step` starts.

namespace trireme::bench {

struct Mode {
  const char* name;
  int zero;
  Placement placement;
  std::vector<const char*> peers;  // as bench/peers/*_step.py call them
};

const std::vector<Mode>& modes();

// What may be varied to see what it does.
struct Tuning {
  EngineOptions options;
  std::string compress = "none";
  int warm_up = kWarmUpSteps;
  int timed = kTimedSteps;

  void add_to(CLI::App& app);
  std::vector<std::string> arguments() const;
};

// This program as a rank; rank 0 writes what it has measured to `output`.
std::vector<std::string> step_rank_command(const std::string& mode,
                                           std::size_t setting,
                                           const Tuning& tuning,
                                           const std::string& output);
int run_step_rank(const std::string& mode,
                  std::size_t setting,
                  const Tuning& tuning,
                  const std::string& output);

}  // namespace trireme::bench
