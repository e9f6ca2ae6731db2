#pragma once

#include <string>

#include "trireme/core/usable_gpus.h"
#include "trireme/settings/train_settings.h"

namespace trireme {

// Why these settings cannot be trained on a GPU, and what to do; empty: they can. Settings that
// resolve() has not seen are judged by what they say.
std::string why_not_on_gpu(const TrainSettings& settings);

// The settings with the device that they are trained on, cpu or cuda, and where that is a GPU and
// nothing was said of ranks, a rank for each. `remark`: why it is not a GPU, where one is there.
// Throws ConfigError where cuda is asked for and cannot be had.
struct DeviceChoice {
  TrainSettings settings;
  std::string remark{};
};
DeviceChoice choose_device(TrainSettings settings, const UsableGpus& gpus);

// "1 GPU (NVIDIA H200)", "4 GPUs (NVIDIA A100-SXM4-80GB)", "2 GPUs (Tesla T4, NVIDIA L4)"
std::string gpus_text(const UsableGpus& gpus);

// Which GPU of its machine a rank takes.
int gpu_of_rank(int local_rank, const UsableGpus& gpus);

}  // namespace trireme
