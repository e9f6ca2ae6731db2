#pragma once

#include <string>
#include <vector>

namespace trireme::worker {

// One rank of the training that RUN/config.json describes; returns the exit code.
int train_in(const std::string& run);

// trireme sample: writes text with a trained gpt.
int sample(const std::vector<std::string>& arguments);

}  // namespace trireme::worker
