#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace trireme::bench {

// Whole steps on a GPU: an engine of one rank beside a plain loop of LibTorch and, with `peers`,
// PyTorch, eager and compiled. Each is a process of its own, in turns.
struct GpuStepOptions {
  int rounds = 3;
  int steps = 20;  // of each of them in a round
  bool peers = false;
};

// Prints the table, and returns it as JSON.
nlohmann::json measure_gpu_steps(const GpuStepOptions& options);

// This process as one of the systems; writes what it has measured to `output`.
int run_gpu_steps(const std::string& system,
                  const std::string& setting,
                  int steps,
                  const std::string& output);

}  // namespace trireme::bench
