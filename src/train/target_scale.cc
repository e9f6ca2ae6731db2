#include "train/target_scale.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "trireme/core/error.h"
#include "trireme/data/preprocessing.h"

namespace trireme::detail {
namespace {

constexpr double kFar = 10;               // times more or less than 1
constexpr std::int64_t kLookedAt = 4096;  // of which the scale is seen as well as of all

// Of samples from everywhere in the data: files may be sorted.
std::vector<float> some_targets(const Dataset& data) {
  const std::int64_t count = std::min(data.size(), kLookedAt);
  std::vector<std::int64_t> samples;
  for (std::int64_t i = 0; i < count; ++i) {
    samples.push_back(i * data.size() / count);
  }
  Batch batch;
  try {
    data.read(samples, batch);
  } catch (const DataError&) {
    return {};  // said in training, where all ranks hear of it
  }
  return batch.targets;
}

std::string title_of_target(const Preprocessing& table) {
  const auto at = static_cast<std::size_t>(table.target);
  return at < table.columns.size() && !table.columns[at].name.empty()
             ? concat("the column \"", table.columns[at].name, "\"")
             : "them";
}

}  // namespace

std::string unusual_target_scale(const Dataset& data) {
  if (data.shape().kind == SampleKind::kTokens || data.shape().classes > 0) {
    return {};
  }
  const std::vector<float> targets = some_targets(data);
  const auto count = static_cast<double>(targets.size());
  const double mean = std::accumulate(targets.begin(), targets.end(), 0.0) / count;
  double squares = 0;
  for (const float target : targets) {
    squares += (target - mean) * (target - mean);
  }
  const double deviation = std::sqrt(squares / count);
  const bool small = deviation > 0 && deviation < 1 / kFar;
  const bool large = deviation > kFar || std::abs(mean) > kFar;
  if (!small && !large) {  // also where there are none: then these are no numbers
    return {};
  }
  return concat(
      "targets: expected a mean near 0 and a standard deviation near 1, which the default --lr and "
      "--epochs are for, found {} and {}: in the file, subtract the mean from {} and divide by the "
      "standard deviation{}",
      {mean,
       deviation,
       title_of_target(data.preprocessing()),
       large ? ", or raise --lr and --epochs" : ""});
}

}  // namespace trireme::detail
