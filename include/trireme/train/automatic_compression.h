#pragma once

#include <string>
#include <vector>

#include "trireme/comm/world.h"
#include "trireme/settings/train_settings.h"

// What TrainSettings::compress = "auto" comes to.

namespace trireme {

struct CompressionChoice {
  std::string name;  // of a compressor, or "none"
  std::string why;   // one line
};

// Measures how long an exchange between the ranks takes, and how long encoding does; rank 0 decides
// (cheapest_compression) and tells the others. None, without measuring, on one machine. A run keeps
// what was chosen when it began: put the name into its settings. Collective.
CompressionChoice automatic_compression(const TrainSettings& settings, World& world);

// What a gradient's element costs on its way.
struct CompressionCost {
  std::string name;
  double bytes = 0;
  double coding_seconds = 0;  // of encoding and decoding
};

// The cheapest of `others` on a link that takes `byte_seconds` for each byte, where that is a tenth
// less than elements of `exact_bytes` take as they are; else "none".
CompressionChoice cheapest_compression(double byte_seconds,
                                       double exact_bytes,
                                       const std::vector<CompressionCost>& others);

}  // namespace trireme
