#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "doctor/report.h"

namespace trireme::detail {

nlohmann::json to_json(const std::vector<Finding>& findings);
std::vector<Finding> findings_from(const nlohmann::json& json);

// The whole report; `--json` writes it.
nlohmann::json to_json(const Report& report);
// What the ranks write for the process that started them. Throws nlohmann's exceptions.
Report report_from(const nlohmann::json& json);

}  // namespace trireme::detail
