#include "trireme/observe/chart.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>

#include "observe/chart_scale.h"
#include "observe/utf8.h"
#include "trireme/core/error.h"

namespace trireme {
namespace {

using detail::Axis;
using detail::Pixel;
using detail::Stretch;

constexpr double kWidth = 760;
constexpr double kHeight = 420;
constexpr double kTop = 66;
constexpr double kBottom = kHeight - 56;
constexpr double kLetter = 6.7;      // about the width of a letter in a label
constexpr double kLabelHeight = 17;  // from one label of a line to the next
constexpr std::size_t kLongestName = 26;

// Told apart by people with any kind of colour vision, by lightness too; one set for each page.
struct Colour {
  const char* on_light;
  const char* on_dark;
};
constexpr std::array<Colour, 8> kColours = {{{"#1f6fb5", "#6cb2f0"},
                                             {"#d4592a", "#f59a6e"},
                                             {"#23895a", "#66cc9a"},
                                             {"#8656b0", "#c4a3ec"},
                                             {"#a97a06", "#e2bb55"},
                                             {"#c03d75", "#f18fb7"},
                                             {"#0d828b", "#5ccad2"},
                                             {"#5f6773", "#aab3c0"}}};

constexpr const char* kStyle = R"(
    text { font-family: system-ui, -apple-system, "Segoe UI", "Noto Sans", "DejaVu Sans", sans-serif; font-size: 12px; fill: #59616d; }
    .title { font-size: 15px; font-weight: 600; fill: #1c2128; }
    .name { font-weight: 500; }
    .grid { stroke: #dfe2e7; stroke-width: 1; }
    .axis { stroke: #9aa2ad; stroke-width: 1; }
    .line { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
    .faint { fill: none; stroke-width: 1; stroke-linejoin: round; stroke-linecap: round; opacity: .28; }
    .lead { fill: none; stroke-width: 1; stroke-dasharray: 1 3; opacity: .7; }
)";
constexpr const char* kDarkStyle = R"(
      text { fill: #9ba5b3; }
      .title { fill: #e8ecf1; }
      .grid { stroke: #2d343e; }
      .axis { stroke: #5d6775; }
)";

// Not by printf, whose point is a comma in some locales: a browser would see two numbers.
std::string number_text(double number) {
  char text[400];  // enough for any
  const auto end = std::to_chars(text, text + sizeof(text), number, std::chars_format::fixed, 1);
  return {text, end.ptr};
}

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : detail::valid_utf8(text)) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        // XML has no way to write control characters.
        result += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return result;
}

// Long names keep both ends: folders differ at the front, settings at the back.
std::string shortened(const std::string& name) {
  std::string valid = detail::valid_utf8(name);
  const std::size_t length = detail::count_characters(valid);
  if (length <= kLongestName) {
    return valid;
  }
  const std::size_t half = (kLongestName - 1) / 2;
  const std::string most = detail::first_characters(valid, length - half);
  return detail::first_characters(valid, half) + "…" + valid.substr(most.size());
}

void add_text(std::string& svg, Pixel at, const char* attributes, const std::string& text) {
  svg += "  <text x=\"" + number_text(at.x) + "\" y=\"" + number_text(at.y) + "\" " + attributes +
         ">" + escaped(text) + "</text>\n";
}

void add_rule(std::string& svg, Pixel from, Pixel to, const char* kind) {
  svg += "  <line class=\"" + std::string(kind) + "\" x1=\"" + number_text(from.x) + "\" y1=\"" +
         number_text(from.y) + "\" x2=\"" + number_text(to.x) + "\" y2=\"" + number_text(to.y) +
         "\"/>\n";
}

void add_dot(std::string& svg, Pixel at, const std::string& colour, const char* attributes) {
  svg += "  <circle class=\"f" + colour + "\" cx=\"" + number_text(at.x) + "\" cy=\"" +
         number_text(at.y) + "\" " + attributes + "/>\n";
}

std::string colour_rules(std::size_t which, const char* colour) {
  return detail::concat(
      " .s", which, " { stroke: ", colour, "; } .f", which, " { fill: ", colour, "; }\n");
}

std::string style(std::size_t colours) {
  std::string light;
  std::string dark;
  for (std::size_t i = 0; i < std::min(colours, kColours.size()); ++i) {
    light += "   " + colour_rules(i, kColours[i].on_light);
    dark += "     " + colour_rules(i, kColours[i].on_dark);
  }
  return detail::concat(
      "  <style>{}{}    @media (prefers-color-scheme: dark) {{}{}    }\n  </style>\n",
      {kStyle, light, kDarkStyle, dark});
}

// Lines of one name share a colour and a label: the raw values and the smoothed ones.
struct Series {
  std::string name;
  std::string colour;  // the number of its class
  Pixel end;           // where its label points to
  bool drawn = false;
};

std::vector<Series> series_of(const Chart& chart) {
  std::vector<Series> all;
  for (const ChartLine& line : chart.lines) {
    if (std::ranges::none_of(all, [&](const Series& s) { return s.name == line.name; })) {
      all.push_back({line.name, std::to_string(all.size() % kColours.size()), {}});
    }
  }
  return all;
}

Axis axis_of(const Chart& chart, std::vector<double> ChartLine::*values, double margin) {
  std::vector<double> finite;
  for (const ChartLine& line : chart.lines) {
    for (std::size_t i = 0; i < std::min(line.x.size(), line.y.size()); ++i) {
      if (std::isfinite(line.x[i]) && std::isfinite(line.y[i])) {
        finite.push_back((line.*values)[i]);
      }
    }
  }
  return detail::axis_for(finite, margin);
}

void add_line(std::string& svg,
              const std::vector<Stretch>& stretches,
              const Series& series,
              bool faint) {
  std::string path;
  for (const Stretch& stretch : stretches) {
    if (stretch.size() == 1) {  // nothing to draw a line to
      add_dot(svg, stretch[0], series.colour, faint ? "r=\"1.5\" opacity=\".4\"" : "r=\"2.5\"");
      continue;
    }
    for (std::size_t i = 0; i < stretch.size(); ++i) {
      path += (i == 0   ? "M"
               : i == 1 ? "L"
                        : " ") +
              number_text(stretch[i].x) + "," + number_text(stretch[i].y);
    }
  }
  if (!path.empty()) {
    svg += "  <path class=\"" + std::string(faint ? "faint" : "line") + " s" + series.colour +
           "\" d=\"" + path + "\"/>\n";
  }
}

// How many names fit beside the chart; where there are more, the last place says how many.
constexpr auto kMostNames = static_cast<std::size_t>((kBottom - kTop) / kLabelHeight) + 1;

// Names at the lines' ends, moved apart where they would cover each other.
void add_names(std::string& svg, std::vector<Series> all, double right) {
  std::erase_if(all, [](const Series& series) { return !series.drawn || series.name.empty(); });
  const std::size_t left_out = all.size() > kMostNames ? all.size() - kMostNames + 1 : 0;
  all.resize(all.size() - left_out);
  std::ranges::stable_sort(all, [](const Series& a, const Series& b) { return a.end.y < b.end.y; });
  std::vector<double> heights;
  heights.reserve(all.size());
  for (const Series& series : all) {
    heights.push_back(heights.empty() ? std::max(series.end.y, kTop)
                                      : std::max(series.end.y, heights.back() + kLabelHeight));
  }
  double lowest = kBottom - (left_out > 0 ? kLabelHeight : 0);
  for (auto height = heights.rbegin(); height != heights.rend(); ++height) {
    *height = std::min(*height, lowest);
    lowest = *height - kLabelHeight;
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Pixel label{right + 16, heights[i]};
    add_dot(svg, all[i].end, all[i].colour, "r=\"3\"");
    svg += "  <path class=\"lead s" + all[i].colour + "\" d=\"M" + number_text(all[i].end.x + 5) +
           "," + number_text(all[i].end.y) + "L" + number_text(right + 6) + "," +
           number_text(all[i].end.y) + " " + number_text(label.x - 3) + "," + number_text(label.y) +
           "\"/>\n";
    svg += "  <text class=\"name f" + all[i].colour + "\" x=\"" + number_text(label.x) + "\" y=\"" +
           number_text(label.y + 4) + "\"><title>" + escaped(all[i].name) + "</title>" +
           escaped(shortened(all[i].name)) + "</text>\n";
  }
  if (left_out > 0) {
    add_text(svg, {right + 16, kBottom + 4}, "", "and " + std::to_string(left_out) + " more");
  }
}

std::string with_factor(const std::string& label, const std::string& factor) {
  return factor.empty() ? label : label.empty() ? factor : label + " (" + factor + ")";
}

// Grid, axes and everything written on them.
void add_frame(std::string& svg, const Chart& chart, const Axis& across, const Axis& up) {
  const double left = across.first_pixel;
  const double right = across.last_pixel;
  const detail::Ticks upwards = detail::ticks_of(up, 5);
  for (const detail::Tick& tick : upwards.ticks) {
    const double y = up.pixel(tick.value);
    add_rule(svg, {left, y}, {right, y}, "grid");
    add_text(svg, {left - 8, y + 4}, "text-anchor=\"end\"", tick.label);
  }
  add_rule(svg, {left, kBottom}, {right, kBottom}, "axis");
  const detail::Ticks sideways = detail::ticks_of(across, 6);
  for (const detail::Tick& tick : sideways.ticks) {
    const double x = across.pixel(tick.value);
    add_rule(svg, {x, kBottom}, {x, kBottom + 5}, "axis");
    add_text(svg, {x, kBottom + 19}, "text-anchor=\"middle\"", tick.label);
  }
  add_text(svg, {16, 24}, "class=\"title\"", chart.title);
  // Beside the axis it would have to be read sideways.
  add_text(svg, {16, 44}, "", with_factor(chart.y_label, upwards.factor));
  add_text(svg,
           {(left + right) / 2, kHeight - 14},
           "text-anchor=\"middle\"",
           with_factor(chart.x_label, sideways.factor));
}

}  // namespace

std::string to_svg(const Chart& chart) {
  std::vector<Series> all = series_of(chart);
  Axis across = axis_of(chart, &ChartLine::x, 0);
  Axis up = axis_of(chart, &ChartLine::y, 0.05);
  std::size_t widest_tick = 0;
  for (const detail::Tick& tick : detail::ticks_of(up, 5).ticks) {
    widest_tick = std::max(widest_tick, detail::count_characters(tick.label));
  }
  std::size_t widest_name = all.size() > kMostNames ? std::size("and 100 more") : 0;
  for (const Series& series : all) {
    widest_name = std::max(widest_name, detail::count_characters(shortened(series.name)));
  }
  across.first_pixel = 24 + kLetter * static_cast<double>(widest_tick);
  across.last_pixel =
      kWidth - 24 - (widest_name > 0 ? 16 + kLetter * static_cast<double>(widest_name) : 0);
  up.first_pixel = kBottom;
  up.last_pixel = kTop;

  std::string lines;
  // Faint lines first: they belong behind all others.
  for (const bool faint : {true, false}) {
    for (const ChartLine& line : chart.lines) {
      const auto series =
          std::ranges::find_if(all, [&](const Series& s) { return s.name == line.name; });
      const auto stretches = detail::stretches_of(line.x, line.y, across, up);
      if (line.faint == faint && !stretches.empty()) {
        add_line(lines, stretches, *series, faint);
        series->end = stretches.back().back();
        series->drawn = true;
      }
    }
  }

  const std::string title = escaped(chart.title);
  std::string svg =
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"760\" height=\"420\" "
      "viewBox=\"0 0 760 420\" role=\"img\" aria-label=\"" +
      title + "\">\n  <title>" + title + "</title>\n" + style(all.size());
  add_frame(svg, chart, across, up);
  svg += lines;
  add_names(svg, all, across.last_pixel);
  if (lines.empty()) {
    add_text(svg,
             {(across.first_pixel + across.last_pixel) / 2, (kTop + kBottom) / 2},
             "text-anchor=\"middle\"",
             "no values to show");
  }
  return svg + "</svg>\n";
}

std::vector<double> smoothed(const std::vector<double>& values, double keep) {
  std::vector<double> result;
  result.reserve(values.size());
  double mean = 0;
  double weight = 0;  // of the values so far; the rest would be the 0 that the mean starts from
  for (const double value : values) {
    if (!std::isfinite(value)) {
      result.push_back(std::numeric_limits<double>::quiet_NaN());
      continue;
    }
    mean = keep * mean + (1 - keep) * value;
    weight = keep * weight + (1 - keep);
    result.push_back(mean / weight);
  }
  return result;
}

}  // namespace trireme
