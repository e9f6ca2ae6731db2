#pragma once

#include <cstdint>

#include "trireme/core/dtype.h"

// Norms that do not depend on how the elements are split over slices, threads and ranks.
//
// Sums of doubles depend on their order, so two layouts of one model would clip differently. Here
// each square is split into a part that is a multiple of a quantum and a rest that is cut at a
// finer one; both quanta are chosen from the largest magnitude and the number of elements such
// that adding the parts never rounds. Exact sums have no order.

namespace trireme {

// What a sum of squares is measured with; the same everywhere one norm is taken.
struct SquareQuanta {
  double coarse = 0;
  double fine = 0;

  // For `count` elements, none of which exceeds `largest` in magnitude. `largest` is finite.
  static SquareQuanta of(double largest, std::int64_t count);
};

// Part of a sum of squares. Parts are added in any order, also across ranks.
struct SquareSum {
  double coarse = 0;
  double fine = 0;

  void add(const SquareSum& other) {
    coarse += other.coarse;
    fine += other.fine;
  }
  double total() const { return coarse + fine; }
  double norm() const;
};

// Elements of a gradient before they are measured: as GradientTransform does.
struct Scaling {
  double divisor = 1;
  double unscale = 1;
};

// The largest magnitude among `numel` elements of float32 or float64; infinity when one of them is
// not finite, which is how an overflow of half-precision training is found.
double largest_magnitude(Dtype dtype,
                         const void* data,
                         std::int64_t numel,
                         const Scaling& scaling = {});

SquareSum sum_squares(Dtype dtype,
                      const void* data,
                      std::int64_t numel,
                      const SquareQuanta& quanta,
                      const Scaling& scaling = {});

// The factor that brings a gradient of norm `norm` down to `max_norm`, at most 1:
// max_norm / (norm + 1e-6), as torch.nn.utils.clip_grad_norm_ has it: 0 for an infinite norm, NaN
// for one that is not a number.
double clip_factor(double norm, double max_norm);

}  // namespace trireme
