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
  std::optional<double> automatic{};  // a value outside that stands for: chosen by the model
  std::vector<std::string> choices{};
  std::string kind{};  // how help calls it; empty: by the type
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
