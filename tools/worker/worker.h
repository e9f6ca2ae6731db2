#pragma once

#include <string>
#include <vector>

namespace trireme::worker {

// One rank of a training; returns the exit code. Rank 0 knows the settings (kEnvTrainSettings) and
// tells the others. `step`: of the checkpoint to go on from; empty: from the start.
int train_as_rank(const std::string& step);

// Prints how many times as long a matrix product takes in each 16-bit type as in float32, with one
// thread, for `trireme doctor`: "bfloat16 0.62 float16 31.5".
int measure_precisions();

// Prints the GPUs that training can use, or why there are none (kGpuLine, kNoGpuLine), for
// `trireme train`.
int print_gpus();

// trireme predict: predictions of a trained model for a file.
int predict(const std::vector<std::string>& arguments);

// trireme sample: writes text with a trained gpt.
int sample(const std::vector<std::string>& arguments);

// trireme ckpt, where it needs LibTorch: weights of a checkpoint or safetensors file as an archive
// of torch::save, and the way back. `arguments`: SOURCE OUT [--average] [--dtype TYPE], and
// FILE FOLDER STEP.
int export_archive(const std::vector<std::string>& arguments);
int import_archive(const std::vector<std::string>& arguments);

}  // namespace trireme::worker
