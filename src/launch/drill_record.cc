#include "launch/drill_record.h"

#include <cmath>
#include <utility>

#include <nlohmann/json.hpp>

#include "trireme/core/version.h"

namespace trireme::detail {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kOpen[] = "not recovered from yet";

double drill_seconds(std::int64_t nanoseconds) {
  return static_cast<double>(nanoseconds) * 1e-9;
}

std::int64_t drill_nanoseconds(double seconds) {
  return static_cast<std::int64_t>(std::llround(seconds * 1e9));
}

template <class T>
Json json_or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

Json json_of(const DrillEntry& entry, std::int64_t began) {
  const bool of_a_rank = !changes_membership(entry.what.fault) && entry.what.struck < 0;
  Json noticed = Json::array();
  for (const DrillEntry::Notice& each : entry.noticed) {
    noticed.push_back({{"who", each.who}, {"after_seconds", each.seconds}, {"how", each.how}});
  }
  return {{"kind", drill_name(entry.what.fault)},
          {"rank", of_a_rank ? Json(entry.what.rank) : Json()},
          {"ranks", entry.what.ranks},
          {"peer", entry.what.peer >= 0 ? Json(entry.what.peer) : Json()},
          {"machine", entry.what.struck >= 0 ? entry.what.struck : entry.what.machine},
          {"step", entry.step},
          {"when", entry.when},
          {"at_seconds", drill_seconds(entry.what.nanoseconds - began)},
          {"noticed", std::move(noticed)},
          {"next_step_seconds", json_or_null(entry.recovered)},
          {"steps_again", entry.again},
          {"outcome", entry.outcome.empty() ? kOpen : entry.outcome}};
}

DrillEntry entry_of(const Json& json, std::int64_t began) {
  DrillEntry entry;
  entry.what.fault = drill_kind(json.at("kind").get<std::string>()).value_or(DrillKind::kKill);
  entry.what.rank = json.at("rank").is_null() ? -1 : json["rank"].get<int>();
  entry.what.ranks = json.at("ranks").get<int>();
  entry.what.peer = json.at("peer").is_null() ? -1 : json["peer"].get<int>();
  entry.what.machine = json.at("machine").get<int>();
  entry.what.struck = is_of_launchers(entry.what.fault) ? entry.what.machine : -1;
  entry.what.nanoseconds = began + drill_nanoseconds(json.at("at_seconds").get<double>());
  entry.step = entry.reached = json.at("step").get<std::int64_t>();
  entry.when = json.at("when").get<std::string>();
  for (const Json& each : json.at("noticed")) {
    entry.noticed.push_back({each.at("who").get<std::string>(),
                             each.at("after_seconds").get<double>(),
                             each.at("how").get<std::string>()});
  }
  if (!json.at("next_step_seconds").is_null()) {
    entry.recovered = json["next_step_seconds"].get<double>();
  }
  entry.again = json.at("steps_again").get<std::int64_t>();
  entry.outcome = json.at("outcome").get<std::string>();
  entry.is_open = entry.outcome == kOpen;
  if (entry.is_open) {
    entry.outcome.clear();
  }
  return entry;
}

}  // namespace

bool changes_membership(DrillKind kind) {
  return kind == DrillKind::kLeave || kind == DrillKind::kJoin;
}

std::string drill_record_text(const DrillRecord& record, std::int64_t began) {
  Json all = {{"format", 1},
              {"trireme", TRIREME_VERSION},
              {"drill", record.plan},
              {"seed", record.seed},
              {"job", record.job},
              {"seconds", drill_seconds(record.age)},
              {"exit_code", json_or_null(record.code)},
              {"faults", Json::array()}};
  for (const DrillEntry& entry : record.entries) {
    all["faults"].push_back(json_of(entry, began));
  }
  return all.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::optional<DrillRecord> read_drill_record(const std::string& text, std::int64_t began) {
  try {
    const Json all = Json::parse(text);
    DrillRecord record{all.at("drill").get<std::string>(),
                       all.at("seed").get<std::uint64_t>(),
                       all.at("job").get<std::string>(),
                       drill_nanoseconds(all.at("seconds").get<double>())};
    for (const Json& each : all.at("faults")) {
      record.entries.push_back(entry_of(each, began));
    }
    return record;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

}  // namespace trireme::detail
