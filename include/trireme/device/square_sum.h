#pragma once

#include <cstdint>

// Norms that do not depend on how the elements are split over slices, threads, ranks and devices.
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

}  // namespace trireme
