#pragma once

#include <nlohmann/json.hpp>

namespace trireme::bench {

// Layers of trireme/nn next to LibTorch's operators for the same, forward and backward, of the size
// that GPT-2 has them in gpu_steps.h. Prints a table, returns its rows.
nlohmann::json measure_gpu_layers(int rounds);

}  // namespace trireme::bench
