#pragma once

#include <memory>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include "trireme/checkpoint/tensor_source.h"
#include "trireme/settings/train_settings.h"

namespace trireme::worker {

// What the run in a folder was trained with, for using its model: without dropout. Throws
// ConfigError.
TrainSettings settings_to_use(const std::string& run);

// Where the weights of a run are.
struct RunWeights {
  std::string path;
  bool is_checkpoint = false;  // else a file
  std::string note{};          // for whoever has not asked for just these; may be empty

  std::unique_ptr<TensorSource> tensors() const;
  void load(torch::nn::Module& module) const;
};
// `which`: model, best, average, checkpoint (the newest), or auto: model, or checkpoint of a run
// that has not finished. Throws ConfigError where there are none.
RunWeights weights_in(const std::string& run, const std::string& which);
// Throws ConfigError for a cross-validated run, which has weights in its folds only.
void check_no_folds(const std::string& run);
// What `which` may be.
std::vector<std::string> names_of_weights();

// Where a run's model is computed. `which`: cpu, cuda, or auto: where the run was trained; where
// that is a GPU and there is none, it is said, and the CPU. To be called before a model is made.
// Throws ConfigError.
at::Device device_to_use(const TrainSettings& settings, const std::string& which);
// What `which` may be, and what help says of it.
std::vector<std::string> names_of_devices();
inline constexpr char kDeviceHelp[] =
    "cpu, cuda, or auto: where the run was trained, or the CPU where there is no GPU (default: "
    "auto)";

// What can be done with a run whose model a command has no use for: "use trireme sample RUN".
std::string what_answers(const std::string& run, const TrainSettings& settings);

}  // namespace trireme::worker
