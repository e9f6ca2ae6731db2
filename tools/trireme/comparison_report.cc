#include "comparison_report.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>

#include <nlohmann/json.hpp>

#include "number_text.h"
#include "trireme/core/error.h"
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

std::string metrics_text(const Comparison& comparison) {
  Table table({"", "A", "B", "B - A", "95 % interval", "p", "test"});
  std::string verdicts;
  for (const ComparedMetric& metric : comparison.metrics) {
    const std::string& name = metric.name;
    std::vector<std::string> row = {name,
                                    value_text(name, metric.a),
                                    value_text(name, metric.b),
                                    difference_text(name, metric.b - metric.a)};
    if (metric.difference) {
      row.push_back(interval_text(name, metric.difference->interval95));
      row.push_back(p_text(metric.difference->p_value));
      row.emplace_back(metric.difference->test);
    } else {
      row.insert(row.end(), {"-", "-", "one number each"});
    }
    table.add(row);
    if (metric.difference) {
      verdicts += "  " + metric.verdict.text + "\n";
    }
  }
  if (comparison.metrics.empty()) {
    return "";
  }
  const bool tested = comparison.basis != Basis::kOneNumber;
  return "Results" + (tested ? " (" + comparison.basis_text + ")" : "") + "\n" +
         indented(table.text()) + "\n" + (tested ? verdicts : "  " + comparison.basis_text + "\n");
}

std::string percent_text(std::optional<double> share) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f %%", 100 * share.value_or(0));
  return share ? text : "-";
}

std::string bytes_text(std::optional<double> bytes) {
  return bytes ? megabytes_text(static_cast<std::int64_t>(*bytes)) : "-";
}

// "B is 1.52 times as fast (95 % interval 1.48 to 1.56); over 450 and 450 steps".
std::string speed_verdict(const ComparedSpeed& speed) {
  const Difference& difference = speed.difference;
  const std::string steps =
      detail::concat("over ", speed.a.count, " and ", speed.b.count, " steps of one run each");
  constexpr double kSureEnough = 0.05;
  if (!(difference.p_value < kSureEnough)) {
    return "no difference in speed can be told, " + steps;
  }
  // Of the slower one; the interval is that of the difference, its own speed taken as known.
  const bool b_is_faster = difference.mean > 0;
  const double slower = b_is_faster ? speed.a.mean : speed.b.mean;
  const auto times = [&](double change) { return 1 + (b_is_faster ? change : -change) / slower; };
  const double ends[] = {times(difference.interval95.low), times(difference.interval95.high)};
  char text[128];
  std::snprintf(text,
                sizeof(text),
                "%s is %.2f times as fast (95 %% interval %.2f to %.2f), ",
                b_is_faster ? "B" : "A",
                times(difference.mean),
                ends[b_is_faster ? 0 : 1],
                ends[b_is_faster ? 1 : 0]);
  return text + steps;
}

// Runs with different numbers of ranks: how much of the additional ranks arrived as speed.
std::string scaling_text(const Comparison& comparison) {
  for (const ComparedSetting& setting : comparison.settings) {
    const double a = setting.name == "ranks" ? std::atof(setting.a.c_str()) : 0;
    const double b = setting.name == "ranks" ? std::atof(setting.b.c_str()) : 0;
    if (a > 0 && b > 0 && comparison.speed && comparison.speed->a.mean > 0 &&
        comparison.speed->b.mean > 0) {
      const double speed_up = comparison.speed->b.mean / comparison.speed->a.mean;
      const double efficiency = a < b ? speed_up / (b / a) : 1 / speed_up / (a / b);
      char text[96];
      std::snprintf(text,
                    sizeof(text),
                    "\n  %g ranks reach %.0f %% of %g times the speed of %g\n",
                    std::max(a, b),
                    100 * efficiency,
                    std::max(a, b) / std::min(a, b),
                    std::min(a, b));
      return text;
    }
  }
  return "";
}

std::string cost_text(const Comparison& comparison) {
  const Run& a = comparison.a;
  const Run& b = comparison.b;
  Table table({"", "A", "B"});
  if (comparison.speed) {
    table.add({comparison.speed->unit + " per second",
               count_text(comparison.speed->a.mean),
               count_text(comparison.speed->b.mean)});
  }
  table.add({"memory per rank", bytes_text(a.rank_bytes), bytes_text(b.rank_bytes)});
  table.add({"time spent communicating",
             percent_text(a.communication_share),
             percent_text(b.communication_share)});
  return "Speed and memory\n" + indented(table.text()) +
         (comparison.speed ? "\n  " + speed_verdict(*comparison.speed) + "\n" : "") +
         scaling_text(comparison);
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

OrderedJson run_json(const Run& run) {
  OrderedJson json = {{"folder", run.folder}, {"status", run.status}, {"steps", run.steps}};
  json["rank_bytes"] = run.rank_bytes ? OrderedJson(*run.rank_bytes) : OrderedJson();
  json["communication_share"] =
      run.communication_share ? OrderedJson(*run.communication_share) : OrderedJson();
  return json;
}

void add_difference(OrderedJson& json, const Difference& difference) {
  json["difference"] = difference.mean;
  json["interval95"] = {difference.interval95.low, difference.interval95.high};
  json["p_value"] = difference.p_value;
  json["test"] = difference.test;
}

}  // namespace

std::string report_text(const Comparison& comparison) {
  std::string text;
  for (const auto& [name, run] : {std::pair("A", &comparison.a), std::pair("B", &comparison.b)}) {
    text +=
        detail::concat(name, "  ", run->folder, "  (", run->status, ", ", run->steps, " steps)\n");
  }
  for (const std::string& note : comparison.notes) {
    text += "Note: " + note + "\n";
  }
  const std::string metrics = metrics_text(comparison);
  text += "\n" + metrics + (metrics.empty() ? "" : "\n");
  return text + cost_text(comparison) + "\n" + settings_text(comparison);
}

std::string report_json(const Comparison& comparison) {
  constexpr const char* kBases[] = {"folds", "samples", "one number"};
  OrderedJson json = {{"a", run_json(comparison.a)}, {"b", run_json(comparison.b)}};
  json["basis"] = kBases[static_cast<int>(comparison.basis)];
  json["notes"] = comparison.notes;
  json["metrics"] = OrderedJson::array();
  for (const ComparedMetric& metric : comparison.metrics) {
    OrderedJson entry = {{"name", metric.name}, {"a", metric.a}, {"b", metric.b}};
    if (metric.difference) {
      add_difference(entry, *metric.difference);
    } else {
      entry["difference"] = metric.b - metric.a;
    }
    entry["better"] = metric.verdict.better == Better::kNeither ? OrderedJson()
                      : metric.verdict.better == Better::kA     ? OrderedJson("a")
                                                                : OrderedJson("b");
    entry["verdict"] = metric.verdict.text;
    json["metrics"].push_back(entry);
  }
  if (comparison.speed) {
    OrderedJson entry = {{"unit", comparison.speed->unit},
                         {"a", comparison.speed->a.mean},
                         {"b", comparison.speed->b.mean}};
    add_difference(entry, comparison.speed->difference);
    json["speed"] = entry;
  }
  json["settings"] = OrderedJson::array();
  for (const ComparedSetting& setting : comparison.settings) {
    json["settings"].push_back({{"name", setting.name}, {"a", setting.a}, {"b", setting.b}});
  }
  // Names of folders may be any bytes.
  return json.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

}  // namespace trireme::tools
