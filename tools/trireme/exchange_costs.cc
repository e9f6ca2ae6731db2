#include "exchange_costs.h"

#include <algorithm>
#include <cstdint>

#include <nlohmann/json.hpp>

#include "trireme/core/concat.h"
#include "trireme/core/printed.h"
#include "trireme/core/table.h"
#include "trireme/observe/progress_line.h"

namespace trireme::tools {
namespace {

using Json = nlohmann::json;

std::string bytes_cell(double value) {
  return megabytes_text(static_cast<std::int64_t>(value));
}
std::string count_cell(double value) {
  return detail::printed("%.0f", value);
}
std::string seconds_cell(double value) {
  return detail::printed("%.2f s", value);
}

struct ExchangeRow {
  const char* name;   // in JSON
  const char* place;  // in summary.json
  const char* title;
  std::string (*text)(double value);
};

// In the order of the table. All bytes are those of the rank that reports.
constexpr ExchangeRow kExchangeRows[] = {
    {"gradient_bytes", "/compression/sent_bytes", "compressed gradients sent", bytes_cell},
    {"saved_bytes", "/compression/saved_bytes", "saved by it", bytes_cell},
    {"encoding_seconds", "/compression/seconds", "encoding", seconds_cell},
    {"relative_error",
     "/compression/check/relative_error",
     "error of the compressed sum",
     [](double value) { return detail::printed("%.2f %%", 100 * value); }},
    {"cosine",
     "/compression/check/cosine",
     "its cosine with the exact one",
     [](double value) { return detail::printed("%.5f", value); }},
    {"descent",
     "/compression/check/descent",
     "its descent for that of the exact one",
     [](double value) { return detail::printed("%.1f %%", 100 * value); }},
    {"weight_bytes", "/rounded_weights/received_bytes", "rounded weights received", bytes_cell},
    {"averagings", "/averaging/averagings", "averagings of replicas", count_cell},
    {"averaging_bytes", "/averaging/sent_bytes", "sent for them", bytes_cell},
    {"averaging_seconds", "/averaging/seconds", "time for them", seconds_cell},
    {"staleness",
     nullptr,
     "updates that gradients are late, mean",
     [](double value) { return detail::printed("%.2f", value); }},
    {"most_staleness", nullptr, "updates that gradients are late, most", count_cell},
    {"held_up_seconds", nullptr, "ranks waited for the one most behind", seconds_cell},
};

void add_staleness(const Json& stale, ExchangeCosts& costs) {
  const Json histogram = stale.value("staleness", Json::array());
  double sum = 0;
  double all = 0;
  double most = 0;
  double updates = 0;
  for (const Json& gradients : histogram.is_array() ? histogram : Json::array()) {
    const double here = gradients.is_number() ? gradients.get<double>() : 0;
    sum += updates * here;
    all += here;
    most = here > 0 ? updates : most;
    ++updates;
  }
  double held_up = 0;
  const Json behind = stale.value("held_up_seconds", Json::array());
  for (const Json& rank : behind.is_array() ? behind : Json::array()) {
    held_up = std::max(held_up, rank.is_number() ? rank.get<double>() : 0);
  }
  costs["staleness"] = all > 0 ? sum / all : 0;
  costs["most_staleness"] = most;
  costs["held_up_seconds"] = held_up;
}

std::string cell_in(const ExchangeCosts& costs, const ExchangeRow& row) {
  const auto found = costs.find(row.name);
  return found == costs.end() ? "-" : row.text(found->second);
}

}  // namespace

ExchangeCosts exchange_costs_in(const Json& summary) {
  ExchangeCosts costs;
  for (const ExchangeRow& row : kExchangeRows) {
    if (row.place == nullptr) {
      continue;
    }
    const Json::json_pointer place(row.place);
    if (summary.contains(place) && summary[place].is_number()) {
      costs[row.name] = summary[place].get<double>();
    }
  }
  const Json stale = summary.value("stale", Json());
  if (stale.is_object()) {
    add_staleness(stale, costs);
  }
  return costs;
}

std::string exchange_costs_text(const ExchangeCosts& a, const ExchangeCosts& b) {
  Table table({"", "A", "B"});
  bool any = false;
  for (const ExchangeRow& row : kExchangeRows) {
    if (a.contains(row.name) || b.contains(row.name)) {
      table.add({row.title, cell_in(a, row), cell_in(b, row)});
      any = true;
    }
  }
  return any ? table.text() : "";
}

}  // namespace trireme::tools
