#include "comparison_report.h"

#include <cmath>

#include <nlohmann/json.hpp>

#include "number_text.h"
#include "trireme/core/counted.h"
#include "trireme/core/error.h"
#include "trireme/core/printed.h"
#include "trireme/core/table.h"
#include "trireme/observe/progress_line.h"

namespace trireme::tools {
namespace {

using OrderedJson = nlohmann::ordered_json;

std::string indented(const std::string& text) {
  std::string result = "  ";
  for (std::size_t i = 0; i < text.size(); ++i) {
    result += text[i];
    if (text[i] == '\n' && i + 1 < text.size()) {
      result += "  ";
    }
  }
  return result;
}

// Of a metric that is another one in other words.
std::string same_as_text(const ComparedMetric& metric) {
  const bool ratio = metric.scale == Scale::kLogRatio && metric.difference->mean != 0;
  return detail::concat(
      "  {} {}, so what is said of {} holds for it, and it is no further test{}\n",
      {metric.name,
       metric.same_as == "loss" ? "is the exponential of the loss"
                                : "is the accuracy where each sample has one label",
       metric.same_as,
       ratio ? ": that of B is " + ratio_text(*metric.difference, "A") : ""});
}

std::string metrics_text(const Comparison& comparison) {
  Table table({"", "A", "B", "B - A", "95 % interval", "p", "adjusted p", "test"});
  std::string verdicts;
  int tests = 0;
  const bool compared = comparison.basis != Basis::kNothing;
  for (const ComparedMetric& metric : comparison.metrics) {
    const std::string& name = metric.name;
    std::vector<std::string> row = {name,
                                    value_text(name, metric.a),
                                    value_text(name, metric.b),
                                    compared ? difference_text(name, metric.b - metric.a) : "-"};
    if (has_p_value(metric)) {
      row.push_back(interval_text(name, metric.difference->interval95, metric.scale));
      const bool bound = is_bound(*metric.difference);
      row.push_back(p_text(metric.difference->p_value, bound));
      row.push_back(p_text(metric.adjusted_p, bound));
      row.emplace_back(metric.difference->test);
    } else {
      row.insert(row.end(),
                 {"-",
                  "-",
                  "-",
                  metric.untested || metric.difference ? "not tested"
                  : compared                           ? "one number each"
                                                       : "not compared"});
    }
    table.add(row);
    if (!metric.same_as.empty()) {
      verdicts += same_as_text(metric);
    } else if (metric.difference || metric.untested) {
      verdicts += "  " + metric.verdict.text + "\n";
      tests += has_p_value(metric) ? 1 : 0;
    }
  }
  if (comparison.metrics.empty()) {
    return "";
  }
  if (tests > 1) {
    verdicts +=
        "  (each 95 % interval is for its metric alone; which run is better is decided by the "
        "adjusted p)\n";
  }
  if (comparison.basis == Basis::kOneNumber) {
    return "Results\n" + indented(table.text()) + "\n  " + comparison.basis_text + "\n";
  }
  return "Results (" + comparison.basis_text + ")\n" + indented(table.text()) +
         (compared ? "\n" + verdicts : "");
}

std::string percent_text(std::optional<double> share) {
  return share ? detail::printed("%.1f %%", 100 * *share) : "-";
}

std::string bytes_text(std::optional<double> bytes) {
  return bytes ? megabytes_text(static_cast<std::int64_t>(*bytes)) : "-";
}

// "B is 1.52 times as fast (95 % interval 1.48 to 1.56), over 450 and 450 steps of one run each".
std::string speed_verdict(const ComparedSpeed& speed) {
  const std::string steps = detail::concat(
      "over ", speed.a.steps, " and ", detail::counted(speed.b.steps, "step"), " of one run each");
  if (!speed.why_untested.empty()) {
    return speed.why_untested + ": it was measured " + steps;
  }
  if (!(speed.log_ratio.p_value < kSureEnough)) {
    return "no clear difference in speed, " + steps;
  }
  const bool b_is_faster = speed.log_ratio.mean > 0;
  const Interval ratio = speed.ratio95();
  return detail::printed("%s is %.2f times as fast (95 %% interval %.2f to %.2f), ",
                         b_is_faster ? "B" : "A",
                         b_is_faster ? speed.ratio() : 1 / speed.ratio(),
                         b_is_faster ? ratio.low : 1 / ratio.high,
                         b_is_faster ? ratio.high : 1 / ratio.low) +
         steps;
}

std::string scaling_text(const Scaling& scaling) {
  return detail::printed("\n  %g ranks reach %.0f %% of %g times the speed of %g\n",
                         scaling.many,
                         100 * scaling.efficiency,
                         scaling.many / scaling.few,
                         scaling.few);
}

// "21.4k tokens/s".
std::string throughput_text(const std::optional<RunSpeed>& speed) {
  return speed ? detail::concat(count_text(speed->speed.per_second), " ", speed->unit, "/s") : "-";
}

std::string cost_text(const Comparison& comparison) {
  const Run& a = comparison.a;
  const Run& b = comparison.b;
  Table table({"", "A", "B"});
  table.add(
      {"throughput", throughput_text(comparison.speed_a), throughput_text(comparison.speed_b)});
  table.add({"memory per rank", bytes_text(a.rank_bytes), bytes_text(b.rank_bytes)});
  table.add({"time spent communicating",
             percent_text(a.communication_share),
             percent_text(b.communication_share)});
  std::string notes;
  for (const std::string& note : comparison.speed_notes) {
    notes += "\n  " + note + "\n";
  }
  return "Speed and memory\n" + indented(table.text()) +
         (comparison.speed ? "\n  " + speed_verdict(*comparison.speed) + "\n" : "") +
         (comparison.scaling ? scaling_text(*comparison.scaling) : "") + notes;
}

std::string exchange_text(const Comparison& comparison) {
  const std::string table = exchange_costs_text(comparison.a.exchange, comparison.b.exchange);
  return table.empty()
             ? ""
             : "What went between the ranks, and what it lost (by the rank that reports)\n" +
                   indented(table) + "\n";
}

std::string settings_text(const Comparison& comparison) {
  if (comparison.settings.empty()) {
    return "Settings: the same in both\n";
  }
  Table table({"", "A", "B"});
  for (const ComparedSetting& setting : comparison.settings) {
    table.add({setting.name, setting.a, setting.b});
  }
  return "Settings that differ\n" + indented(table.text());
}

OrderedJson run_json(const Run& run, const std::optional<RunSpeed>& speed) {
  OrderedJson json = {{"folder", run.folder}, {"status", run.status}, {"steps", run.steps}};
  json["rank_bytes"] = run.rank_bytes ? OrderedJson(*run.rank_bytes) : OrderedJson();
  json["communication_share"] =
      run.communication_share ? OrderedJson(*run.communication_share) : OrderedJson();
  if (run.rank_changes.times > 0) {
    json["rank_changes"] = {{"times", run.rank_changes.times},
                            {"lost", run.rank_changes.lost},
                            {"left", run.rank_changes.left},
                            {"joined", run.rank_changes.joined}};
  }
  if (!run.steps_by_ranks.empty()) {
    json["steps_by_ranks"] = run.steps_by_ranks;
  }
  if (!run.exchange.empty()) {
    json["exchange"] = run.exchange;
  }
  if (speed) {
    json["throughput"] = {{"unit", speed->unit}, {"per_second", speed->speed.per_second}};
  }
  return json;
}

void add_difference(OrderedJson& json, const ComparedMetric& metric) {
  const Difference& difference = *metric.difference;
  if (metric.scale == Scale::kLogRatio) {
    json["difference"] = metric.b - metric.a;
    json["ratio"] = std::exp(difference.mean);
    json["ratio95"] = {std::exp(difference.interval95.low), std::exp(difference.interval95.high)};
  } else {
    json["difference"] = difference.mean;
    json["interval95"] = {difference.interval95.low, difference.interval95.high};
  }
  json["p_value"] = difference.p_value;
  if (is_bound(difference)) {
    json["p_is_bound"] = true;
  }
  json["test"] = difference.test;
}

}  // namespace

std::string report_text(const Comparison& comparison) {
  std::string text;
  for (const auto& [name, run] : {std::pair("A", &comparison.a), std::pair("B", &comparison.b)}) {
    text += detail::concat("{}  {}  ({}, {})\n",
                           {name, run->folder, run->status, detail::counted(run->steps, "step")});
  }
  for (const std::string& note : comparison.notes) {
    text += "Note: " + note + "\n";
  }
  for (const NotCompared& each : comparison.not_compared) {
    text += detail::concat("Not compared: ", each.what, " (", each.why, ")\n");
  }
  const std::string metrics = metrics_text(comparison);
  text += "\n" + metrics + (metrics.empty() ? "" : "\n");
  return text + cost_text(comparison) + "\n" + exchange_text(comparison) +
         settings_text(comparison);
}

std::string report_json(const Comparison& comparison) {
  constexpr const char* kBases[] = {"folds", "samples", "one number", "nothing"};
  OrderedJson json = {{"a", run_json(comparison.a, comparison.speed_a)},
                      {"b", run_json(comparison.b, comparison.speed_b)}};
  json["basis"] = kBases[static_cast<int>(comparison.basis)];
  json["notes"] = comparison.notes;
  json["not_compared"] = OrderedJson::array();
  for (const NotCompared& each : comparison.not_compared) {
    json["not_compared"].push_back({{"what", each.what}, {"why", each.why}});
  }
  json["metrics"] = OrderedJson::array();
  for (const ComparedMetric& metric : comparison.metrics) {
    OrderedJson entry = {{"name", metric.name}, {"a", metric.a}, {"b", metric.b}};
    if (metric.difference) {
      add_difference(entry, metric);
      entry["p_adjusted"] = metric.adjusted_p;
    } else {
      entry["difference"] =
          comparison.basis == Basis::kNothing ? OrderedJson() : OrderedJson(metric.b - metric.a);
    }
    entry["better"] = metric.verdict.better == Better::kNeither ? OrderedJson()
                      : metric.verdict.better == Better::kA     ? OrderedJson("a")
                                                                : OrderedJson("b");
    entry["verdict"] = metric.verdict.text;
    json["metrics"].push_back(entry);
  }
  if (comparison.speed) {
    const ComparedSpeed& speed = *comparison.speed;
    const Interval ratio = speed.ratio95();
    json["speed"] = {{"unit", speed.unit},
                     {"a", speed.a.per_second},
                     {"b", speed.b.per_second},
                     {"ratio", speed.ratio()},
                     {"ratio95", {ratio.low, ratio.high}},
                     {"p_value", speed.log_ratio.p_value},
                     {"test", speed.log_ratio.test}};
    if (!speed.why_untested.empty()) {
      json["speed"]["not_tested"] = speed.why_untested;
    }
  }
  if (comparison.scaling) {
    json["scaling"] = {{"ranks", {comparison.scaling->few, comparison.scaling->many}},
                       {"efficiency", comparison.scaling->efficiency}};
  }
  json["settings"] = OrderedJson::array();
  for (const ComparedSetting& setting : comparison.settings) {
    json["settings"].push_back({{"name", setting.name}, {"a", setting.a}, {"b", setting.b}});
  }
  // Names of folders may be any bytes.
  return json.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

}  // namespace trireme::tools
