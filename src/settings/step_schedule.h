#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace trireme::detail {

// A setting that is a list of STEP:VALUE, with rising steps and values from 1 on, or words for some
// values.
struct StepSchedule {
  const char* name;      // of the setting
  const char* expected;  // what each entry should have been
  std::int64_t least_step;
  std::int64_t most_value;
  std::map<std::string, std::int64_t> words{};
};

// Its entries. Throws ConfigError.
std::vector<std::pair<std::int64_t, std::int64_t>> schedule_entries(
    const StepSchedule& schedule, const std::vector<std::string>& texts);

}  // namespace trireme::detail
