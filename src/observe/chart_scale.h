#pragma once

#include <cstddef>
#include <string>
#include <vector>

// Where a chart's values go: axes with round ticks, and lines thinned to what can be seen.

namespace trireme::detail {

struct Tick {
  double value = 0;
  std::string label;
};

// The range of values that an axis covers, and the pixels they go to.
struct Axis {
  double low = 0;
  double high = 1;
  double first_pixel = 0;
  double last_pixel = 1;

  double pixel(double value) const {
    return first_pixel + (value - low) / (high - low) * (last_pixel - first_pixel);
  }
};

// Finite values of any size and any number of them, also none, to a range that can be drawn: never
// empty, and with `margin` of its width free on both sides. Without a margin, values that begin
// close to 0 have 0 in their range.
Axis axis_for(const std::vector<double>& values, double margin);

struct Ticks {
  std::vector<Tick> ticks;
  std::string factor;  // what all labels are to be multiplied by: "×10⁻⁴"; mostly empty
};

// About `wanted` ticks at 1, 2 or 5 times a power of ten, in the axis's range.
Ticks ticks_of(const Axis& axis, int wanted);

// Numbers beyond this would overflow the arithmetic of an axis; they are drawn as this.
double drawable(double value);

struct Pixel {
  double x = 0;
  double y = 0;
};

// Stretches of a line without gaps. Where many points share a pixel's column, only the first, the
// lowest, the highest and the last stay: the picture is the same, and no spike is lost.
using Stretch = std::vector<Pixel>;
std::vector<Stretch> stretches_of(const std::vector<double>& x,
                                  const std::vector<double>& y,
                                  const Axis& across,
                                  const Axis& up);

}  // namespace trireme::detail
