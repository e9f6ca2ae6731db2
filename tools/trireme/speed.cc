#include "speed.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "trireme/observe/throughput.h"

namespace trireme::tools {
namespace {

// Steps beside each other are alike (another program was running, a disk was busy), so that taken
// for independent they seem to tell far more than they do. Means of long blocks are nearly
// independent: the method of batch means, with as few blocks as Schmeiser (1982) finds to be
// enough.
constexpr std::size_t kMostBlocks = 10;
constexpr std::size_t kLeastSteps = 10;  // of a block
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
  double variance = 0;  // of the seconds per unit, relative to its square
  double degrees = 0;   // of that variance; 0: it is not known
};

Measured measured_speed(const std::vector<RunLog>& logs, const std::string& rate_name) {
  Effort all;
  Measured result;
  std::vector<double> blocks;  // seconds per unit
  std::vector<Effort> steps;   // of logs that are too short for a block of their own, together
  for (const RunLog& log : logs) {
    for (const Effort& step : steps_of(log, rate_name)) {
      steps.push_back(step);
      all += step;
      ++result.speed.steps;
    }
    const std::size_t count = std::min(steps.size() / kLeastSteps, kMostBlocks);
    for (std::size_t block = 0; block < count; ++block) {
      Effort sum;
      for (std::size_t i = steps.size() * block / count; i < steps.size() * (block + 1) / count;
           ++i) {
        sum += steps[i];
      }
      blocks.push_back(sum.seconds / sum.units);
    }
    if (count > 0) {
      steps.clear();
    }
  }
  if (result.speed.steps == 0) {
    return result;
  }
  result.speed.per_second = all.units / all.seconds;
  if (blocks.size() > 1) {
    const MeanEstimate mean = mean_of(blocks);
    const double relative = mean.deviation / mean.mean;
    result.variance = relative * relative / static_cast<double>(blocks.size());
    result.degrees = static_cast<double>(blocks.size() - 1);
  }
  return result;
}

// Of the logarithm of the speeds' ratio: errors of speeds are relative to them. Welch and
// Satterthwaite's degrees.
Difference log_ratio_of(const Measured& a, const Measured& b) {
  const double ratio = std::log(b.speed.per_second / a.speed.per_second);
  const double variance = a.variance + b.variance;
  double degrees = 0;
  if (a.degrees > 0 && b.degrees > 0) {
    const double part = variance > 0 ? a.variance / variance : 0.5;
    degrees = 1 / (part * part / a.degrees + (1 - part) * (1 - part) / b.degrees);
  }
  return student_difference(ratio, std::sqrt(variance), degrees, "t-test of blocks of steps");
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
      return ComparedSpeed{unit, of_a.speed, of_b.speed, log_ratio_of(of_a, of_b)};
    }
  }
  return std::nullopt;
}

}  // namespace trireme::tools
