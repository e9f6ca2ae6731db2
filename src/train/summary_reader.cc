#include <charconv>
#include <limits>

#include <nlohmann/json.hpp>

#include "trireme/core/json_depth.h"
#include "trireme/train/training_report.h"

namespace trireme {
namespace {

using Json = nlohmann::ordered_json;

std::uint64_t fingerprint_in(const Json& json, const char* name) {
  const std::string digits = json.value(name, "");
  std::uint64_t value = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
  return value;
}

std::map<std::string, double> numbers_in(const Json& object) {
  std::map<std::string, double> numbers;
  for (const auto& [name, value] : object.items()) {
    numbers[name] = value.is_null() ? std::numeric_limits<double>::quiet_NaN()  // was not finite
                                    : value.get<double>();
  }
  return numbers;
}

MemoryReport memory_in(const Json& memory) {
  MemoryReport report;
  report.ddp_bytes = memory.at("ddp_bytes").get<std::int64_t>();
  MemoryUse most;
  for (int category = 0; category < kMemoryCategories; ++category) {
    const std::string name(memory_category_name(static_cast<MemoryCategory>(category)));
    const Json& categories = memory.at("categories");
    most.now[static_cast<std::size_t>(category)] = categories.value(name, std::int64_t{0});
  }
  report.ranks.push_back(most);
  return report;
}

}  // namespace

std::optional<TrainResult> result_in_summary(const std::string& text) {
  const Json json = json_too_deep_at(text) ? Json() : Json::parse(text, nullptr, false);
  if (!json.is_object() || json.value("status", Json()) != "finished") {
    return std::nullopt;
  }
  try {
    TrainResult result;
    result.status = json.at("stopped_early").get<bool>() ? TrainResult::Status::kStoppedEarly
                                                         : TrainResult::Status::kFinished;
    result.steps = json.at("steps").get<std::int64_t>();
    result.seconds = json.at("seconds").get<double>();
    const Json& loss = json.at("training_loss");
    result.loss = loss.is_null() ? std::numeric_limits<double>::quiet_NaN() : loss.get<double>();
    result.evaluation.metrics = numbers_in(json.at("metrics"));
    result.evaluated_step = json.value("evaluated_step", result.steps);
    for (const Json& of_class : json.value("classes", Json::array())) {
      result.evaluation.evaluated += of_class.at("support").get<std::int64_t>();
    }
    result.goal_step = json.value(Json::json_pointer("/goal/step"), std::int64_t{0});
    result.goal_seconds = json.value(Json::json_pointer("/goal/seconds"), 0.0);
    result.evaluation.fingerprint = fingerprint_in(json, "evaluation_fingerprint");
    result.data_fingerprint = fingerprint_in(json, "data_fingerprint");
    const Json& throughput = json.at("throughput");
    result.counts_tokens = throughput.at("unit") == "tokens";
    result.per_second = throughput.at("per_second").get<double>();
    result.untimed_steps = throughput.value("untimed_steps", std::int64_t{0});
    result.memory = memory_in(json.at("memory"));
    result.tensor_bytes = json.at("memory").at("tensor_bytes").get<std::int64_t>();
    result.built_in_parts = json.at("memory").value("built_in_parts", false);
    result.micro_batch = json.at("micro_batch").get<std::int64_t>();
    result.communication_share = json.at("communication_share").get<double>();
    result.processor_share = json.value("processor_share", 0.0);
    result.data_share = json.value("data_share", 0.0);
    result.record_share = json.value("record_share", 0.0);
    result.save_share = json.value("save_share", 0.0);
    if (json.contains("compression")) {
      const Json& use = json.at("compression");
      result.compression = {use.at("sent_bytes").get<std::int64_t>(),
                            use.at("exact_bytes").get<std::int64_t>(),
                            use.at("seconds").get<double>(),
                            use.value("exact_parameters", std::vector<std::string>())};
      if (use.contains("check")) {
        const Json& check = use.at("check");
        result.compression.check = {check.at("step").get<std::int64_t>(),
                                    check.at("relative_error").get<double>(),
                                    check.at("cosine").get<double>(),
                                    check.value("descent", 0.0)};
      }
    }
    if (json.contains("rounded_weights")) {
      const Json& use = json.at("rounded_weights");
      result.compression.weights = {use.at("received_bytes").get<std::int64_t>(),
                                    use.at("exact_bytes").get<std::int64_t>()};
    }
    result.pruned = json.value("pruned", 0.0);
    if (json.contains("offload")) {
      const Json& use = json["offload"];
      result.offload = {use.at("fetched_bytes").get<std::int64_t>(),
                        use.at("sent_bytes").get<std::int64_t>(),
                        use.at("wait_seconds").get<double>(),
                        use.at("past_cache").get<bool>(),
                        use.value("in_memory", false)};
    }
    if (json.contains("averaging")) {
      const Json& use = json.at("averaging");
      result.averaging = {use.at("averagings").get<std::int64_t>(),
                          use.at("sent_bytes").get<std::int64_t>(),
                          use.at("seconds").get<double>()};
      result.replicas = use.at("replicas").get<int>();
      result.phases = use.value("phases", "");
      result.phase_changes = use.value("changes", std::vector<std::string>());
    }
    if (json.contains("stale")) {
      const Json& use = json.at("stale");
      result.stale = {use.at("staleness").get<std::vector<std::int64_t>>(),
                      use.at("held_up_seconds").get<std::vector<double>>()};
    }
    result.machines = json.value(Json::json_pointer("/machine/machines"), 1);
    result.sum_group = json.value("sum_group", std::int64_t{0});
    if (json.contains("steps_by_ranks")) {
      for (const Json& part : json.at("steps_by_ranks")) {
        result.steps_by_ranks.push_back({part.at("from").get<std::int64_t>(),
                                         part.at("to").get<std::int64_t>(),
                                         part.at("ranks").get<std::int64_t>()});
      }
    } else if (result.steps > 0 && json.contains("ranks")) {
      result.steps_by_ranks = {{1, result.steps, json.at("ranks").get<std::int64_t>()}};
    }
    if (json.contains("rank_changes")) {
      const Json& changes = json.at("rank_changes");
      result.rank_changes = {changes.at("times").get<std::int64_t>(),
                             changes.at("lost").get<std::int64_t>(),
                             changes.value("left", std::int64_t{0}),
                             changes.at("joined").get<std::int64_t>(),
                             changes.at("steps_again").get<std::int64_t>()};
    }
    return result;
  } catch (const Json::exception&) {
    return std::nullopt;  // an older version's, or nobody's: the training is repeated
  }
}

}  // namespace trireme
