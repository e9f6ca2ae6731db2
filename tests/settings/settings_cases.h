#pragma once

#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "trireme/core/error.h"
#include "trireme/settings/differences.h"
#include "trireme/settings/settings_table.h"

// What tests of settings have in common.

namespace trireme::settings_cases {

inline TrainSettings from(const std::string& json) {
  TrainSettings settings;
  apply_json(settings, json, "a.json");
  return settings;
}

inline const Setting& setting(const std::string& name) {
  for (const Setting& each : settings_table()) {
    if (each.name == name) {
      return each;
    }
  }
  throw InternalError("no setting " + name);
}

// What a call refuses, in its words; empty where it refuses nothing.
template <class Call>
std::string refusal(Call call) {
  try {
    call();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return {};
}

inline std::string refusal_of_json(const std::string& json) {
  return refusal([&] { from(json); });
}

inline std::string refusal_of_text(const std::string& name, const std::string& text) {
  return refusal([&] {
    TrainSettings settings;
    setting(name).set_text(settings, text);
  });
}

inline std::string refusal_of(const TrainSettings& settings) {
  return refusal([&] { resolve(settings); });
}

inline void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in: " << text;
  }
}

// A text that a setting of this kind takes and that is not its default, with what it is in JSON.
inline std::pair<std::string, nlohmann::json> another_value(const Setting& of) {
  std::vector<std::pair<std::string, nlohmann::json>> candidates;
  if (of.kind == "on/off") {
    candidates = {{"true", true}, {"off", false}};
  } else if (of.kind == "integer") {
    candidates = {{"2", 2}, {"3", 3}, {"64", 64}};
  } else if (of.kind == "number" || of.kind == "number or auto") {
    candidates = {{"0.5", 0.5}, {"2.5", 2.5}};
  } else if (of.kind == "list of integers") {
    candidates = {{"2,3,5", {2, 3, 5}}};
  } else if (of.kind == "list of numbers") {
    candidates = {{"0.5,2", {0.5, 2.0}}};
  } else if (of.kind == "list of STEP:BATCH") {
    candidates = {{"5:8,9:16", {"5:8", "9:16"}}};
  } else if (of.kind == "list of STEP:STEPS, STEP:exact") {
    candidates = {{"0:8,9:16", {"0:8", "9:16"}}, {"5:8,9:16", {"5:8", "9:16"}}};
  } else if (of.kind == "list of NAME=VALUE") {
    candidates = {{"alpha=0.5,centered", {"alpha=0.5", "centered"}}};
  } else if (of.kind == "list of columns" || of.kind == "list of words") {
    candidates = {{"age,city", {"age", "city"}}};
  } else if (of.kind == "integer, share or auto") {
    candidates = {{"4", "4"}};
  } else if (of.kind == "bytes or auto") {
    candidates = {{"512MB", "512MB"}};
  } else if (of.kind == "text") {
    candidates = {{"some words", "some words"}};
  } else {
    const std::string last = of.kind.substr(of.kind.rfind('|') + 1);
    candidates = {{last, last}};
  }
  for (auto& candidate : candidates) {
    if (candidate.second.dump() != of.default_text &&
        refusal_of_text(of.name, candidate.first).empty()) {
      return candidate;
    }
  }
  ADD_FAILURE() << of.name << ": the test knows no value for \"" << of.kind << "\"";
  return {};
}

inline std::vector<std::string> names_of(const std::vector<SettingDifference>& differences) {
  std::vector<std::string> names;
  for (const SettingDifference& each : differences) {
    names.push_back(each.name);
  }
  return names;
}

}  // namespace trireme::settings_cases
