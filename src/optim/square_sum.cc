#include "trireme/optim/square_sum.h"

#include <algorithm>

#include "device/stream.h"

namespace trireme {

double largest_magnitude(const ConstSpan& data, const Scaling& scaling) {
  double largest = 0;
  device::host().largest(data, scaling, &largest);
  return largest;
}

SquareSum sum_squares(const ConstSpan& data, const SquareQuanta& quanta, const Scaling& scaling) {
  SquareSum sum;
  device::host().squares(data, quanta, scaling, &sum);
  return sum;
}

double clip_factor(double norm, double max_norm) {
  return std::min(max_norm / (norm + 1e-6), 1.0);  // in this order a NaN stays one, as in torch
}

}  // namespace trireme
