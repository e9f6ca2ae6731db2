#include "trireme/observe/chart.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "observe/chart_scale.h"

namespace trireme {
namespace {

using detail::Axis;
using detail::axis_for;
using detail::ticks_of;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Whether every element is closed in order, and every & begins an entity: what a reader of XML
// insists on.
::testing::AssertionResult well_formed(const std::string& xml) {
  std::vector<std::string> open;
  for (std::size_t at = 0; at < xml.size(); ++at) {
    const std::string_view rest = std::string_view(xml).substr(at);
    constexpr std::array<std::string_view, 4> kEntities = {"&amp;", "&lt;", "&gt;", "&quot;"};
    if (xml[at] == '&' && std::none_of(kEntities.begin(), kEntities.end(), [&](auto entity) {
          return rest.starts_with(entity);
        })) {
      return ::testing::AssertionFailure() << "a bare & at " << at;
    }
    if (xml[at] != '<') {
      continue;
    }
    const std::size_t end = xml.find('>', at);
    if (end == std::string::npos) {
      return ::testing::AssertionFailure() << "a tag without end at " << at;
    }
    const std::string tag = xml.substr(at + 1, end - at - 1);
    const std::string name = tag.substr(0, tag.find_first_of(" /", 1));
    if (tag.find('<') != std::string::npos) {
      return ::testing::AssertionFailure() << "a bare < at " << at;
    }
    if (tag[0] == '/') {
      if (open.empty() || "/" + open.back() != tag) {
        return ::testing::AssertionFailure() << tag << " closes nothing";
      }
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(name);
    }
    at = end;
  }
  return open.empty() ? ::testing::AssertionSuccess()
                      : ::testing::AssertionFailure() << open.back() << " is left open";
}

struct Point {
  double x;
  double y;
};

// The values of an attribute of all elements that begin like this.
std::vector<std::string> attributes_of(const std::string& svg,
                                       const std::string& element,
                                       const std::string& name) {
  std::vector<std::string> values;
  const std::string before = " " + name + "=\"";
  for (std::size_t at = svg.find(element); at != std::string::npos;
       at = svg.find(element, at + 1)) {
    const std::size_t start = svg.find(before, at) + before.size();
    values.push_back(svg.substr(start, svg.find('"', start) - start));
  }
  return values;
}

// The points of all paths of a class.
std::vector<Point> points_of(const std::string& svg, const std::string& kind) {
  std::vector<Point> points;
  for (const std::string& path : attributes_of(svg, "<path class=\"" + kind + " s", "d")) {
    for (const char* at = path.c_str(); *at != '\0';) {
      char* end = nullptr;
      const double x = std::strtod(at + 1, &end);  // after M, L or a space
      EXPECT_EQ(*end, ',') << path;
      const double y = std::strtod(end + 1, &end);
      points.push_back({x, y});
      at = end;
    }
  }
  return points;
}

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

Chart chart_with(std::vector<double> x, std::vector<double> y) {
  return {"title", "step", "loss", {{"run", std::move(x), std::move(y), false}}};
}

// What must hold of any picture.
void expect_sound(const std::string& svg) {
  EXPECT_TRUE(well_formed(svg)) << svg;
  for (const char* bad : {"nan", "inf", "<script", "http://www.w3.org/1999/xlink", "url("}) {
    EXPECT_EQ(svg.find(bad), std::string::npos) << bad << " in\n" << svg;
  }
  for (const char* kind : {"line", "faint"}) {
    for (const Point& point : points_of(svg, kind)) {
      EXPECT_TRUE(point.x >= 0 && point.x <= 760 && point.y >= 0 && point.y <= 420)
          << point.x << "," << point.y;
    }
  }
}

TEST(Chart, IsSoundForEveryKindOfValues) {
  const double huge = std::numeric_limits<double>::max();
  const double tiny = std::numeric_limits<double>::denorm_min();
  const std::vector<std::vector<double>> kinds = {{},
                                                  {1},
                                                  {0},
                                                  {2, 2, 2},
                                                  {0, 0},
                                                  {kNan, kNan},
                                                  {1, kNan, 2, kInfinity, 3, -kInfinity},
                                                  {huge, -huge},
                                                  {huge, huge},
                                                  {0, tiny},
                                                  {tiny, tiny},
                                                  {1e6, 1e6 + 1e-7},
                                                  {1e6, 1e6 + 1},
                                                  {-3, 5, -8},
                                                  {1e-9, 2e-9}};
  for (const auto& y : kinds) {
    std::vector<double> steps(y.size());
    for (std::size_t i = 0; i < y.size(); ++i) {
      steps[i] = static_cast<double>(i);
    }
    expect_sound(to_svg(chart_with(steps, y)));
    expect_sound(to_svg(chart_with(y, steps)));
    expect_sound(to_svg(chart_with(y, y)));
  }
  expect_sound(to_svg({}));
  EXPECT_NE(to_svg(chart_with({}, {})).find("no values to show"), std::string::npos);
  EXPECT_NE(to_svg(chart_with({5}, {2.5})).find("<circle"), std::string::npos);
}

TEST(Chart, NamesMayHoldAnything) {
  Chart chart = chart_with({0, 1}, {0, 1});
  chart.lines[0].name = "a & b <script> \"c\" \x01\xFF";
  chart.title = "x < y & z";
  const std::string svg = to_svg(chart);
  expect_sound(svg);
  EXPECT_NE(svg.find("a &amp; b &lt;script&gt; &quot;c&quot;  \xEF\xBF\xBD"), std::string::npos);
  EXPECT_NE(svg.find("x &lt; y &amp; z"), std::string::npos);
  chart.lines[0].name = "first part of a very long name, and the end";
  const std::string shortened = to_svg(chart);
  EXPECT_NE(shortened.find("first part o…"), std::string::npos) << shortened;
  EXPECT_NE(shortened.find("<title>first part of a very long name, and the end</title>"),
            std::string::npos);
}

TEST(Chart, IsMadeForLightAndDarkPages) {
  const std::string svg = to_svg(chart_with({0, 1}, {0, 1}));
  EXPECT_NE(svg.find("@media (prefers-color-scheme: dark)"), std::string::npos);
  EXPECT_EQ(svg.find("<rect"), std::string::npos);  // no background of its own
}

TEST(Chart, PutsPointsWhereTheyBelong) {
  const std::string svg = to_svg(chart_with({0, 5, 10}, {0, 1, 0}));
  const auto points = points_of(svg, "line");
  ASSERT_EQ(points.size(), 3u);
  EXPECT_NEAR(points[1].x, (points[0].x + points[2].x) / 2, 0.1);
  EXPECT_EQ(points[0].y, points[2].y);
  EXPECT_LT(points[1].y, points[0].y);  // up is less
}

TEST(Chart, GapsStayGaps) {
  const std::string svg = to_svg(chart_with({0, 1, 2, 3, 4}, {1, 2, kNan, 2, 1}));
  EXPECT_EQ(points_of(svg, "line").size(), 4u);
  const std::size_t path = svg.find("<path class=\"line");
  EXPECT_EQ(count_of(svg.substr(path, svg.find("/>", path) - path), "M"), 2u);
}

TEST(Chart, RawAndSmoothedValuesShareAColourAndAName) {
  Chart chart = chart_with({0, 1, 2}, {3, 1, 2});
  chart.lines.push_back(chart.lines[0]);
  chart.lines[0].faint = true;
  chart.lines.push_back({"other", {0, 1}, {1, 1}, false});
  const std::string svg = to_svg(chart);
  EXPECT_EQ(points_of(svg, "faint").size(), 3u);
  EXPECT_EQ(count_of(svg, "class=\"name "), 2u);
  EXPECT_NE(svg.find("class=\"faint s0\""), std::string::npos);
  EXPECT_NE(svg.find("class=\"line s0\""), std::string::npos);
  EXPECT_NE(svg.find("class=\"line s1\""), std::string::npos);
  // Behind, whatever the order they were given in.
  EXPECT_LT(svg.find("class=\"faint s0\""), svg.find("class=\"line s0\""));
}

TEST(Chart, ManyNamesDoNotCoverEachOther) {
  Chart chart;
  for (int i = 0; i < 60; ++i) {
    chart.lines.push_back({"run " + std::to_string(i), {0, 1}, {0, 1.0 + i % 3}, false});
  }
  const std::string svg = to_svg(chart);
  expect_sound(svg);
  double before = 0;
  const auto heights = attributes_of(svg, "<text class=\"name ", "y");
  const std::size_t shown = heights.size();
  for (const std::string& height : heights) {
    const double y = std::stod(height);
    EXPECT_GE(y - before, 14);
    EXPECT_LT(y, 400);
    before = y;
  }
  EXPECT_GT(shown, 10u);
  EXPECT_NE(svg.find("and " + std::to_string(60 - shown) + " more"), std::string::npos);
}

TEST(Chart, ThinningLosesNoSpike) {
  constexpr std::size_t kPoints = 300'000;
  std::vector<double> x(kPoints);
  std::vector<double> y(kPoints);
  for (std::size_t i = 0; i < kPoints; ++i) {
    x[i] = static_cast<double>(i);
    y[i] = std::sin(static_cast<double>(i)) * 0.1;
  }
  y[123'456] = 5;
  y[200'001] = -7;
  const std::string svg = to_svg(chart_with(x, y));
  EXPECT_LT(svg.size(), 100'000u);
  const auto points = points_of(svg, "line");
  // At most four in a column of pixels.
  EXPECT_LE(points.size(), 4u * 760);
  double top = 420;
  double bottom = 0;
  for (const Point& point : points) {
    top = std::min(top, point.y);
    bottom = std::max(bottom, point.y);
  }
  const std::string spike = to_svg(chart_with({0, 1, 2}, {5, -7, 5}));
  EXPECT_EQ(points_of(spike, "line")[0].y, top);
  EXPECT_EQ(points_of(spike, "line")[1].y, bottom);
}

TEST(ChartScale, ThinningKeepsMinimumAndMaximumOfEachColumn) {
  const Axis across{0, 100, 0, 10};  // ten values to a pixel
  const Axis up{0, 1, 0, 1};
  std::vector<double> x;
  std::vector<double> y;
  for (int i = 0; i < 100; ++i) {
    x.push_back(i);
    y.push_back(static_cast<double>((i * 37) % 101));
  }
  const auto stretches = detail::stretches_of(x, y, across, up);
  ASSERT_EQ(stretches.size(), 1u);
  for (int column = 0; column < 10; ++column) {
    double least = kInfinity;
    double most = -kInfinity;
    double kept_least = kInfinity;
    double kept_most = -kInfinity;
    for (int i = column * 10; i < column * 10 + 10; ++i) {
      least = std::min(least, y[static_cast<std::size_t>(i)]);
      most = std::max(most, y[static_cast<std::size_t>(i)]);
    }
    for (const detail::Pixel& point : stretches[0]) {
      if (std::floor(point.x) == column) {
        kept_least = std::min(kept_least, point.y);
        kept_most = std::max(kept_most, point.y);
      }
    }
    EXPECT_EQ(kept_least, least) << column;
    EXPECT_EQ(kept_most, most) << column;
  }
  EXPECT_LE(stretches[0].size(), 40u);
}

std::vector<std::string> labels_of(double low, double high, int wanted = 5) {
  std::vector<std::string> labels;
  for (const detail::Tick& tick : ticks_of({low, high}, wanted).ticks) {
    labels.push_back(tick.label);
  }
  return labels;
}

TEST(ChartScale, TicksAreRoundAndReadable) {
  using Labels = std::vector<std::string>;
  EXPECT_EQ(labels_of(0, 1), (Labels{"0", "0.2", "0.4", "0.6", "0.8", "1.0"}));
  EXPECT_EQ(labels_of(-1.2, 2.1, 3), (Labels{"−1", "0", "1", "2"}));
  EXPECT_EQ(labels_of(0, 20'000), (Labels{"0", "5k", "10k", "15k", "20k"}));
  EXPECT_EQ(labels_of(0, 4e6, 4), (Labels{"0", "1M", "2M", "3M", "4M"}));
  EXPECT_EQ(labels_of(0.88, 0.91, 3), (Labels{"0.88", "0.89", "0.90", "0.91"}));
  EXPECT_EQ(labels_of(0, 3e-4, 3), (Labels{"0", "1", "2", "3"}));
  EXPECT_EQ((ticks_of({0, 3e-4}, 3).factor), "×10⁻⁴");
  EXPECT_EQ((ticks_of({0, 3e30}, 3).factor), "×10³⁰");
  EXPECT_EQ((ticks_of({0, 300}, 3).factor), "");
  // Neighbours differ, also where only the last digits of large numbers do.
  const Labels close = labels_of(1e6, 1e6 + 1);
  EXPECT_EQ(std::set<std::string>(close.begin(), close.end()).size(), close.size());
}

TEST(ChartScale, AxesAreNeverEmpty) {
  for (const std::vector<double>& values :
       {std::vector<double>{}, {0}, {5, 5}, {1e300, 1e308}, {-1e308, 1e308}, {1, 1 + 1e-15}}) {
    const Axis axis = axis_for(values, 0.05);
    EXPECT_LT(axis.low, axis.high);
    EXPECT_TRUE(std::isfinite(axis.high - axis.low));
    const auto ticks = ticks_of(axis, 5).ticks;
    EXPECT_GE(ticks.size(), 3u);
    EXPECT_LE(ticks.size(), 12u);
  }
}

TEST(Smoothed, IsTheWeightedMeanOfWhatCameBefore) {
  const std::vector<double> values = {4, 8, -1, 3.5, 10};
  const auto found = smoothed(values, 0.7);
  for (std::size_t i = 0; i < values.size(); ++i) {
    double sum = 0;
    double weights = 0;
    for (std::size_t j = 0; j <= i; ++j) {
      const double weight = std::pow(0.7, static_cast<double>(i - j));
      sum += weight * values[j];
      weights += weight;
    }
    EXPECT_NEAR(found[i], sum / weights, 1e-13);
  }
}

TEST(Smoothed, PassesOverWhatIsNotFinite) {
  const auto found = smoothed({2, kNan, kInfinity, 2}, 0.9);
  ASSERT_EQ(found.size(), 4u);
  EXPECT_DOUBLE_EQ(found[0], 2);
  EXPECT_TRUE(std::isnan(found[1]));
  EXPECT_TRUE(std::isnan(found[2]));
  EXPECT_DOUBLE_EQ(found[3], 2);
  EXPECT_TRUE(smoothed({}).empty());
}

}  // namespace
}  // namespace trireme
