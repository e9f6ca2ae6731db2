#include "doctor/report_json.h"

#include "trireme/core/version.h"

namespace trireme::detail {
namespace {

using Json = nlohmann::json;

// What was not measured is null.
Json rows(const PairMatrix& pairs, const std::vector<double>& values) {
  Json all = Json::array();
  for (int from = 0; from < pairs.ranks; ++from) {
    Json row = Json::array();
    for (int to = 0; to < pairs.ranks; ++to) {
      const double value = values[pairs.at(from, to)];
      row.push_back(value > 0 ? Json(value) : Json(nullptr));
    }
    all.push_back(std::move(row));
  }
  return all;
}

void read_rows(const Json& all, const PairMatrix& pairs, std::vector<double>& values) {
  for (int from = 0; from < pairs.ranks; ++from) {
    for (int to = 0; to < pairs.ranks; ++to) {
      const Json& value = all.at(static_cast<std::size_t>(from)).at(static_cast<std::size_t>(to));
      values[pairs.at(from, to)] = value.is_null() ? 0 : value.get<double>();
    }
  }
}

Verdict verdict_called(const std::string& name) {
  for (const Verdict verdict : {Verdict::kOk, Verdict::kNote, Verdict::kWarning}) {
    if (name == verdict_name(verdict)) {
      return verdict;
    }
  }
  return Verdict::kProblem;
}

}  // namespace

Json to_json(const std::vector<Finding>& findings) {
  Json json = Json::array();
  for (const Finding& finding : findings) {
    json.push_back({{"check", finding.check},
                    {"value", finding.value},
                    {"verdict", verdict_name(finding.verdict)},
                    {"advice", finding.advice},
                    {"numbers", finding.numbers}});
  }
  return json;
}

std::vector<Finding> findings_from(const Json& json) {
  std::vector<Finding> findings;
  for (const Json& one : json) {
    findings.push_back({one.at("check"),
                        one.at("value"),
                        one.at("numbers").get<std::map<std::string, double>>(),
                        verdict_called(one.at("verdict")),
                        one.at("advice")});
  }
  return findings;
}

Json to_json(const Report& report) {
  Json machines = Json::array();
  for (const MachineReport& machine : report.machines) {
    machines.push_back({{"name", machine.name}, {"findings", to_json(machine.findings)}});
  }
  Json clocks = Json::array();
  for (const ClockDifference& clock : report.clocks) {
    clocks.push_back({{"seconds", clock.seconds}, {"uncertainty_seconds", clock.uncertainty}});
  }
  return {{"trireme", TRIREME_VERSION},
          {"verdict", verdict_name(report.verdict())},
          {"ranks", report.machine_of.size()},
          {"machines", machines},
          {"machine_of_rank", report.machine_of},
          {"latency_us", rows(report.pairs, report.pairs.latency_us)},
          {"bandwidth_bytes_per_second", rows(report.pairs, report.pairs.bytes_per_second)},
          {"clocks", clocks},
          {"findings", to_json(report.between)}};
}

Report report_from(const Json& json) {
  Report report;
  for (const Json& machine : json.at("machines")) {
    report.machines.push_back({machine.at("name"), findings_from(machine.at("findings"))});
  }
  report.machine_of = json.at("machine_of_rank").get<std::vector<int>>();
  report.pairs = PairMatrix(static_cast<int>(json.at("latency_us").size()));
  read_rows(json.at("latency_us"), report.pairs, report.pairs.latency_us);
  read_rows(json.at("bandwidth_bytes_per_second"), report.pairs, report.pairs.bytes_per_second);
  for (const Json& clock : json.at("clocks")) {
    report.clocks.push_back({clock.at("seconds"), clock.at("uncertainty_seconds")});
  }
  report.between = findings_from(json.at("findings"));
  return report;
}

}  // namespace trireme::detail
