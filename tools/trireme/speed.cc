#include "speed.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>

#include "trireme/observe/throughput.h"

namespace trireme::tools {
namespace {

// Steps beside each other are alike (another program was running, a disk was busy), so that taken
// for independent they seem to tell far more than they do. How much the mean of a series varies is
// the strength of its slowest waves: the squares of the first cosine coefficients, of which each is
// nearly independent of the others (Lazarus, Lewis, Stock and Watson, 2018). The more of them, the
// better known is their mean, which is too small where they are not slow enough. A disturbance that
// is slow and small beside the rest hardly shows in so few steps as it takes to disturb the mean: a
// wave more for each so many steps is few enough not to depend on seeing it, and costs little (the
// intervals of 120 steps without any disturbance are a fifth longer than with eight waves).
constexpr std::size_t kFewestSteps = 30;
constexpr std::size_t kMostWaves = 8;
constexpr std::size_t kLeastWaves = 3;
constexpr std::size_t kStepsOfWave = 50;  // of each, where these are more than the least
constexpr double kBias = 0.08;            // of the variance that is accepted
// A log of text has both.
constexpr const char* kUnits[] = {"tokens", "samples"};

struct Effort {
  double seconds = 0;
  double units = 0;
};

Effort& operator+=(Effort& sum, const Effort& more) {
  sum.seconds += more.seconds;
  sum.units += more.units;
  return sum;
}

// The steps of a log in order, without the first ones; all where there are no others.
std::vector<Effort> steps_of(const RunLog& log, const std::string& rate_name) {
  const auto rates = log.training.find(rate_name);
  if (rates == log.training.end()) {
    return {};
  }
  std::map<double, double> seconds;
  if (const auto found = log.training.find("seconds"); found != log.training.end()) {
    for (std::size_t i = 0; i < found->second.steps.size(); ++i) {
      seconds[found->second.steps[i]] = found->second.values[i];
    }
  }
  std::vector<Effort> steps;
  const Series& series = rates->second;
  const std::size_t size = series.values.size();
  const auto first = static_cast<std::size_t>(
      log.untimed_steps.value_or(untimed_steps(static_cast<std::int64_t>(size))));
  for (std::size_t i = first < size ? first : 0; i < size; ++i) {
    const double rate = series.values[i];
    const auto took = seconds.find(series.steps[i]);
    // Without seconds, steps of one size.
    const double time = took != seconds.end() ? took->second : 1 / rate;
    if (std::isfinite(time) && std::isfinite(rate) && time > 0 && rate > 0) {
      steps.push_back({time, rate * time});
    }
  }
  return steps;
}

struct Measured {
  Speed speed;
  double variance = 0;         // of the seconds per unit, relative to its square
  double degrees = 0;          // of that variance
  std::string why_untested{};  // where it is not known
};

// The correlation of neighbours, with Kendall's correction: of few values it comes out too small.
double neighbour_correlation(const std::vector<double>& values) {
  double products = 0;
  double squares = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    squares += values[i] * values[i];
    products += i > 0 ? values[i] * values[i - 1] : 0;
  }
  const double found = squares > 0 ? products / squares : 0;
  return std::clamp(found + (1 + 3 * found) / static_cast<double>(values.size()), 0.0, 0.999);
}

// How many waves of a series (around 0) are slow beside all that its steps have in common with
// their neighbours. Of n steps with neighbours' correlation r, the mean square of the first B waves
// is too small by a share of (pi^2 / 6) (B / n)^2 2 r / (1 - r)^2. Means of several steps show
// correlations that are small but last.
double slow_waves(const std::vector<double>& values) {
  constexpr std::size_t kLeastMeans = 40;
  const double squared = std::numbers::pi * std::numbers::pi / 6;
  auto waves =
      static_cast<double>(std::clamp(values.size() / kStepsOfWave, kLeastWaves, kMostWaves));
  for (std::size_t together = 1; together == 1 || values.size() / together >= kLeastMeans;
       together *= 3) {
    std::vector<double> means(values.size() / together, 0);
    for (std::size_t i = 0; i < means.size() * together; ++i) {
      means[i / together] += values[i];
    }
    const double r = neighbour_correlation(means);
    if (r > 0) {
      waves = std::min(
          waves,
          static_cast<double>(means.size()) * (1 - r) * std::sqrt(kBias / (squared * 2 * r)));
    }
  }
  return std::floor(waves);
}

// The variance of the mean of these, which are around 0, from so many of their slowest waves.
double variance_of_mean(const std::vector<double>& values, std::size_t waves) {
  const auto n = static_cast<double>(values.size());
  double sum = 0;
  for (std::size_t wave = 1; wave <= waves; ++wave) {
    double coefficient = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      coefficient += values[i] * std::cos(std::numbers::pi * static_cast<double>(wave) *
                                          (static_cast<double>(i) + 0.5) / n);
    }
    sum += coefficient * coefficient * 2 / n;
  }
  return sum / static_cast<double>(waves) / n;
}

Measured measured_speed(const std::vector<RunLog>& logs, const std::string& rate_name) {
  Effort all;
  std::vector<Effort> steps;
  for (const RunLog& log : logs) {
    for (const Effort& step : steps_of(log, rate_name)) {
      steps.push_back(step);
      all += step;
    }
  }
  Measured result;
  result.speed.steps = std::ssize(steps);
  if (steps.empty()) {
    return result;
  }
  result.speed.per_second = all.units / all.seconds;
  if (steps.size() < kFewestSteps) {
    result.why_untested = "the runs are too short to compare their speed";
    return result;
  }
  std::vector<double> late(steps.size());  // how much later than at the mean speed each step ended
  double largest = 0;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    late[i] = steps[i].seconds - steps[i].units * all.seconds / all.units;
    largest = std::max(largest, std::fabs(late[i]));
  }
  const double mean = all.seconds / static_cast<double>(steps.size());
  if (largest <= 1e-12 * mean) {
    result.why_untested = "nothing can be said about chance in their speed, which does not vary";
    return result;
  }
  const double waves = slow_waves(late);
  if (waves < kLeastWaves) {
    result.why_untested =
        "the speed of a run varied too slowly to tell a difference from chance: longer runs can";
    return result;
  }
  result.variance = variance_of_mean(late, static_cast<std::size_t>(waves)) / (mean * mean);
  result.degrees = waves;
  return result;
}

// By the logarithm of the speeds' ratio: errors of speeds are relative to them. Welch and
// Satterthwaite's degrees.
ComparedSpeed compared_speed(const char* unit, const Measured& a, const Measured& b) {
  const double ratio = std::log(b.speed.per_second / a.speed.per_second);
  const double variance = a.variance + b.variance;
  const std::string& why = a.why_untested.empty() ? b.why_untested : a.why_untested;
  double degrees = 0;
  if (why.empty()) {
    const double part = variance > 0 ? a.variance / variance : 0.5;
    degrees = 1 / (part * part / a.degrees + (1 - part) * (1 - part) / b.degrees);
  }
  return {unit,
          a.speed,
          b.speed,
          student_difference(ratio, std::sqrt(variance), degrees, "t-test of slow waves"),
          why};
}

}  // namespace

double ComparedSpeed::ratio() const {
  return std::exp(log_ratio.mean);
}

Interval ComparedSpeed::ratio95() const {
  return {std::exp(log_ratio.interval95.low), std::exp(log_ratio.interval95.high)};
}

std::optional<RunSpeed> speed_of(const std::vector<RunLog>& logs) {
  for (const char* unit : kUnits) {
    const Measured measured = measured_speed(logs, std::string(unit) + "_per_second");
    if (measured.speed.steps > 0) {
      return RunSpeed{unit, measured.speed};
    }
  }
  return std::nullopt;
}

std::optional<ComparedSpeed> compare_speed(const std::vector<RunLog>& a,
                                           const std::vector<RunLog>& b) {
  for (const char* unit : kUnits) {
    const std::string name = std::string(unit) + "_per_second";
    const Measured of_a = measured_speed(a, name);
    const Measured of_b = measured_speed(b, name);
    if (of_a.speed.steps > 0 && of_b.speed.steps > 0) {
      return compared_speed(unit, of_a, of_b);
    }
  }
  return std::nullopt;
}

}  // namespace trireme::tools
