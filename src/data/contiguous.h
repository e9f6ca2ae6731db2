#pragma once

#include "trireme/data/views.h"

namespace trireme::detail {

// A dataset whose samples are windows of one text. Windows may have tokens in common, and
// neighbours tell about each other: dealt at random to training and evaluation, a model would be
// evaluated on what it was trained on.
class ContiguousDataset : public Dataset {
 public:
  // Held out: the windows of one stretch of the text, [begin, end) as fractions of it, each token
  // predicted once. For training: those of the rest, at least one sequence away from it.
  virtual Parts hold_out_stretch(double begin, double end) const = 0;
};

}  // namespace trireme::detail
