#pragma once

#include <string>
#include <vector>

namespace trireme::worker {

// One rank of the training in the folder `run`; returns the exit code. Its settings are in the
// environment (kEnvTrainSettings), else in RUN/config.json. `step`: of the checkpoint to go on
// from; empty: from the start.
int train_in(const std::string& run, const std::string& step);

// Prints how many times as long a matrix product takes in each 16-bit type as in float32, with one
// thread, for `trireme doctor`: "bfloat16 0.62 float16 31.5".
int measure_precisions();

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
