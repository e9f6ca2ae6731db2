#include "fault_points.h"

#include <algorithm>
#include <fstream>
#include <map>

#include <nlohmann/json.hpp>

#include "number_text.h"
#include "samples.h"
#include "trireme/core/error.h"

namespace trireme::bench {

namespace {

nlohmann::json faults_in(const std::string& run) {
  std::ifstream file(run + "/drill.json");
  const auto all = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  TRIREME_CHECK(all.is_object(), "the training has left no record of its drill in ", run);
  return all.at("faults");
}

}  // namespace

// Together 0.85 in as many steps as are asked for: ranks are also killed in saves and as worlds
// begin.
std::vector<std::string> drill_of_points(std::uint64_t seed, int every) {
  const auto in_a_step = [&](double times) { return std::to_string(times / every); };
  return {"--drill",
          detail::concat("kill:p={};stop:1s,p={};leave:p={};join:p={}",
                         {in_a_step(0.6), in_a_step(0.05), in_a_step(0.1), in_a_step(0.1)}),
          "--drill-seed",
          std::to_string(seed),
          "--save-every",
          "10"};
}

std::vector<Recovery> points_in(const std::string& run) {
  std::vector<Recovery> recoveries;
  for (const nlohmann::json& fault : faults_in(run)) {
    if (fault.at("outcome") == "recovered") {
      recoveries.push_back(
          {fault.at("kind").get<std::string>() + " " + fault.at("when").get<std::string>(),
           fault.at("next_step_seconds").get<double>(),
           fault.at("steps_again").get<std::int64_t>()});
    }
  }
  return recoveries;
}

std::string outcomes_text(const std::string& run) {
  std::map<std::string, int> times;
  for (const nlohmann::json& fault : faults_in(run)) {
    const std::string outcome = fault.at("outcome");
    ++times[outcome.substr(0, outcome.find(':'))];
  }
  std::string text;
  for (const auto& [outcome, count] : times) {
    text += detail::concat("{}{} {}", {text.empty() ? "" : ", ", count, outcome});
  }
  return text;
}

std::string noticed_text(const std::string& run) {
  std::vector<double> seconds;
  for (const nlohmann::json& fault : faults_in(run)) {
    for (const nlohmann::json& by : fault.at("noticed")) {
      if (fault.at("kind") == "kill" && by.at("who") == "launcher") {
        seconds.push_back(by.at("after_seconds").get<double>());
      }
    }
  }
  return seconds.empty()
             ? ""
             : detail::concat(
                   "the launcher knew of a killed rank after {} s (median), at most {} s\n",
                   {number_text(median(seconds)),
                    number_text(*std::max_element(seconds.begin(), seconds.end()))});
}

}  // namespace trireme::bench
