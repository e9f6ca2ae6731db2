#include "observe/chart_scale.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

namespace trireme::detail {
namespace {

// Relative to the size of the values; a narrower range is one value and its rounding.
constexpr double kNarrowestRange = 1e-9;

// 1, 2 or 5 times a power of ten, near `step`.
double round_step(double step) {
  const double power = std::pow(10.0, std::floor(std::log10(step)));
  const double digits = step / power;
  return power * (digits < 1.5 ? 1 : digits < 3.5 ? 2 : digits < 7.5 ? 5 : 10);
}

std::string superscript(int number) {
  constexpr std::array<const char*, 10> kDigits = {
      "⁰", "¹", "²", "³", "⁴", "⁵", "⁶", "⁷", "⁸", "⁹"};
  std::string text = number < 0 ? "⁻" : "";
  for (const char digit : std::to_string(std::abs(number))) {
    text += kDigits[static_cast<std::size_t>(digit - '0')];
  }
  return text;
}

// The power of ten that labels are counted in, and how it is written: after each, or once for all.
struct Unit {
  int power = 0;
  std::string suffix;
  std::string factor;
};

Unit unit_for(double largest, double step) {
  const int power = static_cast<int>(std::floor(std::log10(largest) + 1e-9));
  const int fine = static_cast<int>(std::floor(std::log10(step) + 1e-9));
  constexpr int kMostDigits = 3;  // after the point
  const auto readable = [&](int unit) { return unit - fine <= kMostDigits; };
  if (power < -3 || power >= 12 || (power >= 9 && !readable(9))) {
    return {power, "", "×10" + superscript(power)};
  }
  if (power >= 9) {
    return {9, "G", ""};
  }
  if (power >= 6 && readable(6)) {
    return {6, "M", ""};
  }
  if (power >= 4 && readable(3)) {
    return {3, "k", ""};
  }
  return {};
}

std::string label_of(double value, double step, const Unit& unit) {
  if (value == 0) {
    return "0";
  }
  const double scale = std::pow(10.0, unit.power);
  const double fine = std::floor(std::log10(step / scale) + 1e-9);
  const int digits = std::clamp(static_cast<int>(-fine), 0, 15);
  char text[400];  // enough for any
  const auto end = std::to_chars(
      text, text + sizeof(text), std::fabs(value) / scale, std::chars_format::fixed, digits);
  return (value < 0 ? "−" : "") + std::string(text, end.ptr) + unit.suffix;
}

}  // namespace

double drawable(double value) {
  constexpr double kLargest = 1e300;
  return std::clamp(value, -kLargest, kLargest);
}

Axis axis_for(const std::vector<double>& values, double margin) {
  if (values.empty()) {
    return {};
  }
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  double low = drawable(*least);
  double high = drawable(*most);
  const double size = std::max(std::fabs(low), std::fabs(high));
  if (high - low < size * kNarrowestRange || high - low < 1e-290) {
    // A single value, in the middle of a range of its own size.
    const double room = size < 1e-290 ? 1 : size / 2;
    return {low - room, high + room};
  }
  if (margin == 0 && low > 0 && low < 0.05 * high) {
    low = 0;
  }
  const double room = (high - low) * margin;
  return {low - room, high + room};
}

Ticks ticks_of(const Axis& axis, int wanted) {
  const double step = round_step((axis.high - axis.low) / wanted);
  const Unit unit = unit_for(std::max(std::fabs(axis.low), std::fabs(axis.high)), step);
  Ticks result{{}, unit.factor};
  // Counted in whole steps: adding steps up would end at 0.30000000000000004.
  for (double count = std::ceil(axis.low / step - 1e-9); count * step <= axis.high + step * 1e-9;
       ++count) {
    const double value = count == 0 ? 0 : count * step;  // no -0
    result.ticks.push_back({value, label_of(value, step, unit)});
  }
  return result;
}

std::vector<Stretch> stretches_of(const std::vector<double>& x,
                                  const std::vector<double>& y,
                                  const Axis& across,
                                  const Axis& up) {
  std::vector<Stretch> stretches;
  Stretch column;  // the points of one stretch that share a column of pixels
  bool gap = true;
  const auto close_column = [&] {
    if (column.empty()) {
      return;
    }
    if (gap) {
      stretches.emplace_back();
      gap = false;
    }
    const auto by_height = [](const Pixel& a, const Pixel& b) { return a.y < b.y; };
    auto [top, bottom] = std::minmax_element(column.begin(), column.end(), by_height);
    std::array<Stretch::iterator, 4> kept = {
        column.begin(), std::min(top, bottom), std::max(top, bottom), column.end() - 1};
    const auto end = std::unique(kept.begin(), kept.end());
    for (auto point = kept.begin(); point != end; ++point) {
      stretches.back().push_back(**point);
    }
    column.clear();
  };
  for (std::size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
    if (!std::isfinite(x[i]) || !std::isfinite(y[i])) {
      close_column();
      gap = true;
      continue;
    }
    const Pixel point{across.pixel(drawable(x[i])), up.pixel(drawable(y[i]))};
    if (!column.empty() && std::floor(column.front().x) != std::floor(point.x)) {
      close_column();
    }
    column.push_back(point);
  }
  close_column();
  return stretches;
}

}  // namespace trireme::detail
