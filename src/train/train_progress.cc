#include "train/train_progress.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <nlohmann/json.hpp>

#include "trireme/core/error.h"
#include "trireme/core/json_depth.h"
#include "trireme/core/random.h"

namespace trireme::detail {
namespace {

using Json = nlohmann::ordered_json;
using Metrics = std::map<std::string, double>;

// Calls visit(name, member) for every member: the one list that writing and reading go through.
template <class Progress, class Visit>
void each_member(Progress& progress, const Visit& visit) {
  visit("step", progress.step);
  visit("position", progress.position);
  visit("micro_batch", progress.micro_batch);
  visit("training_samples", progress.training_samples);
  visit("held_out_samples", progress.held_out_samples);
  visit("evaluated_step", progress.evaluated_step);
  visit("evaluation", progress.evaluation);
  visit("best_step", progress.best_step);
  visit("best", progress.best);
  visit("without_improvement", progress.without_improvement);
  visit("plateau_factor", progress.plateau.factor);
  visit("plateau_best", progress.plateau.best);
  visit("plateau_bad", progress.plateau.bad);
  visit("plateau_seen", progress.plateau.seen);
  visit("goal_step", progress.goal_step);
  visit("goal_seconds", progress.goal_seconds);
  visit("loss", progress.loss);
  visit("seconds", progress.seconds);
  visit("run_seconds", progress.run_seconds);
  visit("processor_seconds", progress.processor_seconds);
  visit("comm_seconds", progress.comm_seconds);
  visit("data_seconds", progress.data_seconds);
  visit("record_seconds", progress.record_seconds);
  visit("save_seconds", progress.save_seconds);
  visit("timed_seconds", progress.timed_seconds);
  visit("timed_samples", progress.timed_samples);
  visit("samples", progress.samples);
  visit("tensor_bytes", progress.tensor_bytes);
  visit("threads", progress.threads);
}

// Since version 0.1: what was saved before has none of them.
template <class Progress, class Visit>
void each_later_member(Progress& progress, const Visit& visit) {
  visit("sum_group", progress.sum_group);
  visit("data_fingerprint", progress.data_fingerprint);
  visit("rank_changes", progress.rank_changes.times);
  visit("ranks_lost", progress.rank_changes.lost);
  visit("ranks_left", progress.rank_changes.left);
  visit("ranks_joined", progress.rank_changes.joined);
  visit("steps_again", progress.rank_changes.steps_again);
  visit("job", progress.job);
  visit("told_changes", progress.told.times);
  visit("told_lost", progress.told.lost);
  visit("told_left", progress.told.left);
  visit("told_joined", progress.told.joined);
  visit("told_again", progress.told.steps_again);
  visit("steps_by_ranks", progress.steps_by_ranks);
  visit("untimed_steps", progress.untimed_steps);
  visit("compressed_bytes", progress.compression.sent_bytes);
  visit("compressed_from_bytes", progress.compression.exact_bytes);
  visit("compression_seconds", progress.compression.seconds);
  visit("check_step", progress.compression.check.step);
  visit("check_relative_error", progress.compression.check.relative_error);
  visit("check_cosine", progress.compression.check.cosine);
  visit("check_descent", progress.compression.check.descent);
  visit("weights_bytes", progress.compression.weights.received_bytes);
  visit("weights_from_bytes", progress.compression.weights.exact_bytes);
  visit("averaging_bytes", progress.averaging.sent_bytes);
  visit("averaging_seconds", progress.averaging.seconds);
  visit("staleness", progress.stale.staleness);
  visit("held_up_seconds", progress.stale.held_up);
  visit("phase_changes", progress.phase_changes);
}

// JSON has no words for what is not finite.
Json json_of(double value) {
  if (std::isfinite(value)) {
    return value;
  }
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}
Json json_of(std::int64_t value) {
  return value;
}
Json json_of(int value) {
  return value;
}
Json json_of(bool value) {
  return value;
}
Json json_of(const std::string& value) {
  return value;
}
Json json_of(const Metrics& values) {
  Json json = Json::object();
  for (const auto& [name, value] : values) {
    json[name] = json_of(value);
  }
  return json;
}

Json json_of(const StepsOnRanks& steps) {
  return Json::array({steps.from, steps.to, steps.ranks});
}
template <class T>
Json json_of(const std::vector<T>& values) {
  Json json = Json::array();
  for (const T& value : values) {
    json.push_back(json_of(value));
  }
  return json;
}

bool read(const Json& json, double& value) {
  if (json.is_string()) {
    const auto& word = json.get_ref<const std::string&>();
    value = word == "nan" ? std::numeric_limits<double>::quiet_NaN()
                          : std::numeric_limits<double>::infinity() * (word == "-inf" ? -1 : 1);
    return word == "nan" || word == "inf" || word == "-inf";
  }
  if (json.is_number()) {
    value = json.get<double>();
  }
  return json.is_number();
}
// Counts: none is negative, and none so large that adding to it could overflow.
constexpr std::int64_t kMostCounted = std::int64_t{1} << 60;
bool read(const Json& json, std::int64_t& value) {
  if (!json.is_number_integer()) {
    return false;
  }
  value = json.get<std::int64_t>();
  return value >= 0 && value <= kMostCounted;
}
bool read(const Json& json, int& value) {
  std::int64_t wide = 0;
  if (!read(json, wide) || wide > std::numeric_limits<int>::max()) {
    return false;
  }
  value = static_cast<int>(wide);
  return true;
}
bool read(const Json& json, bool& value) {
  if (json.is_boolean()) {
    value = json.get<bool>();
  }
  return json.is_boolean();
}
bool read(const Json& json, std::string& value) {
  if (json.is_string()) {
    value = json.get<std::string>();
  }
  return json.is_string();
}
bool read(const Json& json, Metrics& values) {
  if (!json.is_object()) {
    return false;
  }
  for (const auto& [name, value] : json.items()) {
    if (!read(value, values[name])) {
      return false;
    }
  }
  return true;
}

bool read(const Json& json, StepsOnRanks& steps) {
  return json.is_array() && json.size() == 3 && read(json[0], steps.from) &&
         read(json[1], steps.to) && read(json[2], steps.ranks) && steps.from <= steps.to;
}
template <class T>
bool read(const Json& json, std::vector<T>& values) {
  values.clear();
  return json.is_array() && std::ranges::all_of(json, [&](const Json& each) {
           return read(each, values.emplace_back());
         });
}

bool is_better(const std::string& metric, double a, double b) {
  if (std::isnan(b)) {
    return !std::isnan(a);  // any number is better than none
  }
  return is_share(metric) ? a > b : a < b;
}

}  // namespace

bool TrainProgress::judge(std::int64_t after, const Metrics& metrics, const std::string& by) {
  evaluated_step = after;
  evaluation = metrics;
  if (!best.empty() && !is_better(by, metrics.at(by), best.at(by))) {
    ++without_improvement;
    return false;
  }
  best = metrics;
  best_step = after;
  without_improvement = 0;
  return true;
}

void TrainProgress::aim(const Goal& goal, double now_seconds) {
  const auto reached = evaluation.find(goal.metric);
  if (goal_step == 0 && reached != evaluation.end() &&
      !is_better(goal.metric, goal.value, reached->second)) {
    goal_step = evaluated_step;
    goal_seconds = now_seconds;
  }
}

void TrainProgress::summarise(TrainResult& result) const {
  result.seconds = seconds;
  result.loss = loss;
  result.evaluated_step = evaluated_step;
  result.best_step = best_step;
  result.best = best;
  result.goal_step = goal_step;
  result.goal_seconds = goal_seconds;
  result.tensor_bytes = tensor_bytes;
  result.untimed_steps = untimed_steps;
  result.rank_changes = rank_changes;
  result.steps_by_ranks = steps_by_ranks;
  result.phase_changes = phase_changes;
  if (timed_seconds > 0) {
    result.per_second = static_cast<double>(timed_samples) / timed_seconds;
  } else if (seconds > 0) {
    result.per_second = static_cast<double>(samples) / seconds;
  }
  if (seconds > 0) {
    result.communication_share = comm_seconds / seconds;
    result.data_share = data_seconds / seconds;
    result.record_share = record_seconds / (seconds + record_seconds);
    result.save_share = save_seconds / (seconds + save_seconds);
  }
}

std::string TrainProgress::to_json() const {
  Json json = Json::object();
  const auto write = [&](const char* name, const auto& member) { json[name] = json_of(member); };
  each_member(*this, write);
  each_later_member(*this, write);
  return json.dump();
}

TrainProgress TrainProgress::parse(const std::string& text, const std::string& path) {
  const Json json = json_too_deep_at(text) ? Json(Json::value_t::discarded)
                                           : Json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto refuse = [&](const std::string& expected, const std::string& found) {
    throw CheckpointError(
        path,
        -1,
        concat("\"", path, "\": its note \"train\": expected ", expected, ", found ", found));
  };
  if (!json.is_object()) {
    refuse("a JSON object", json.is_discarded() ? "something else" : json.dump());
  }
  TrainProgress progress;
  const auto take = [&](const char* name, auto& member) {
    if (!read(json[name], member)) {
      refuse(concat("a value of \"", name, "\""), json[name].dump());
    }
  };
  each_member(progress, [&](const char* name, auto& member) {
    if (!json.contains(name)) {
      refuse(concat("\"", name, "\""), "none");
    }
    take(name, member);
  });
  each_later_member(progress, [&](const char* name, auto& member) {
    if (json.contains(name)) {
      take(name, member);
    }
  });
  return progress;
}

std::int64_t fingerprint_of(const Parts& data) {
  constexpr std::int64_t kMostSamples = 256;
  std::uint64_t state = 0;
  for (const auto* part : {&data.train, &data.held_out}) {
    const std::int64_t size = *part ? (*part)->size() : 0;
    const std::int64_t looked_at = std::min(size, kMostSamples);
    for (std::int64_t i = 0; i < looked_at; ++i) {
      // Not i * size / looked_at, which may overflow.
      const std::int64_t sample = i * (size / looked_at) + i * (size % looked_at) / looked_at;
      state = mix(state, (*part)->fingerprint(sample));
    }
  }
  // 0 means that nobody has looked; and it is kept as a count.
  return static_cast<std::int64_t>((state | 1) % static_cast<std::uint64_t>(kMostCounted)) | 1;
}

}  // namespace trireme::detail
