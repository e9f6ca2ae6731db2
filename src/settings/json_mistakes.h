#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace trireme::detail {

// What is wrong with text that is no JSON, for whoever has written it: where ("line 3, column 7"),
// what was expected, what was found.
std::string describe_mistake(const std::string& text, const nlohmann::json::parse_error& error);
std::string describe_mistake(const std::string& text, const nlohmann::json::out_of_range& error);

}  // namespace trireme::detail
