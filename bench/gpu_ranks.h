#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>

#include "trireme/parallel/options.h"

namespace trireme::bench {

// Steps of several ranks on the GPUs of this machine, at every ZeRO stage and with both placements
// of stage 3, in turns within one job: GPT-2 124M in bfloat16, of few tokens, so that the cost of
// keeping ranks together is not hidden behind that of computing.
struct GpuRanksOptions {
  int ranks = 2;
  int rounds = 3;
  int steps = 30;             // of each mode in a round
  std::int64_t tokens = 256;  // in a step of a rank
  std::size_t bucket_bytes = EngineOptions().bucket_bytes;
  int bucket_count = EngineOptions().bucket_count;
};

// Prints the table, and returns it as JSON.
nlohmann::json measure_gpu_ranks(const GpuRanksOptions& options);

// This process as one of the ranks; rank 0 writes what it has measured to `output`.
int run_gpu_rank(const GpuRanksOptions& options, const std::string& output);

}  // namespace trireme::bench
