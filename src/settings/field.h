#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "trireme/settings/settings_table.h"

namespace trireme::detail {

// What values a setting takes besides those of its type.
struct Bounds {
  double least = -1e300;
  double most = 1e300;
  std::optional<double> automatic{};  // a value that stands for: chosen by the model
  // Written "auto", and its number is refused. Runs of versions that wrote the number are read as
  // they were meant.
  bool automatic_by_word = false;
  std::vector<std::string> choices{};
  bool may_be_empty = false;  // besides the choices
  std::string kind{};         // how help calls it; empty: by the type
  // What a run without this setting did, as JSON: required of every setting that is added.
  std::string absent{};
};

// One entry of the table, bound to a member of TrainSettings. Instantiated for the types its
// members have.
template <class T>
Setting field(const std::string& name,
              T TrainSettings::*member,
              const std::string& meaning,
              const Bounds& bounds = {},
              const std::vector<std::string>& deepspeed = {});

}  // namespace trireme::detail
