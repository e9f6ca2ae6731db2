#pragma once

#include <string>

#include "trireme/data/preprocessing.h"

// preprocessing.json of a run's folder: how the training data was read, so that other files can be
// read the same way. docs/train.md says what is in it.

namespace trireme {

inline constexpr const char* kPreprocessingFile = "preprocessing.json";

// Numbers have all their digits: what is read back is the same to the last bit.
std::string to_json(const Preprocessing& preprocessing);

// Throws ConfigError that names the file, what was expected and what was found.
Preprocessing read_preprocessing(const std::string& path);

}  // namespace trireme
