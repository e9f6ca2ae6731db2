#pragma once

#include <string>

namespace trireme::bench {

struct TrainBenchOptions {
  bool peers = false;
  int rounds = 3;
  std::string model;  // mlp or convnet; empty: both
  double epochs = 0;  // 0: 10 for the mlp, 6 for the convnet
  std::string json_path;
  std::string command_line;
};

// trireme bench train: whole trainings of the built-in models on Fashion-MNIST, one process with
// one thread, beside PyTorch with the same network, batches, learning rates and initial weights.
// Returns the exit code.
int run_train_bench(const TrainBenchOptions& options);

}  // namespace trireme::bench
