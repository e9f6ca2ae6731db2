#pragma once

#include <map>
#include <string>

#include <nlohmann/json_fwd.hpp>

// What ranks have sent each other instead of exact gradients in every step, and what was lost by
// it: compression, averaged replicas, stale gradients.

namespace trireme::tools {

// By name, from summary.json; what a run has not done is not in it.
using ExchangeCosts = std::map<std::string, double>;
ExchangeCosts exchange_costs_in(const nlohmann::json& summary);

// A table of two runs side by side; empty where neither has done anything of it.
std::string exchange_costs_text(const ExchangeCosts& a, const ExchangeCosts& b);

}  // namespace trireme::tools
