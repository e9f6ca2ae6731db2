#pragma once

#include <cstdint>

namespace trireme {

// What one element of a model costs, in bytes. 16-bit parameters with float32 masters and Adam are
// {2, 4, 12}, or {2, 2, 12} with 16-bit gradients; float32 with Adam is {4, 4, 8}.
struct ElementBytes {
  double parameter = 4;
  double gradient = 4;
  double optimizer = 8;  // states, and the master copy of a 16-bit parameter
};

// Bytes of one rank, buffers and activations not counted.
struct MemoryShare {
  double parameters = 0;
  double gradients = 0;
  double optimizer = 0;
  double total() const { return parameters + gradients + optimizer; }
};

// Rajbhandari et al., "ZeRO", section 3: stage 0 keeps everything everywhere (DDP), 1 divides the
// optimizer's memory by the world, 2 the gradients too, 3 the parameters too. With P elements and
// 16-bit gradients: 16 P, 4 P + 12 P / N, 2 P + 14 P / N, 16 P / N.
MemoryShare memory_share(int stage, int world, std::int64_t numel, const ElementBytes& bytes);

}  // namespace trireme
