#pragma once

#include <string>
#include <vector>

namespace trireme {

// A line of a chart; points that are not finite leave a gap. Lines of one name share a colour.
struct ChartLine {
  std::string name;
  std::vector<double> x;
  std::vector<double> y;
  bool faint = false;  // drawn thin and pale: raw values behind a smoothed line
};

struct Chart {
  std::string title;
  std::string x_label;
  std::string y_label;
  std::vector<ChartLine> lines;
};

// A picture of its own as SVG: axes with round ticks, grid, legend; readable on a light and on a
// dark page; no scripts, no outside fonts. Long lines are thinned to what can be seen.
std::string to_svg(const Chart& chart);

// The running mean that makes a noisy curve readable (exponential, with its start corrected).
// Values that are not finite stay gaps.
std::vector<double> smoothed(const std::vector<double>& values, double keep = 0.9);

}  // namespace trireme
