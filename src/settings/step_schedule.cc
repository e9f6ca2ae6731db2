#include "settings/step_schedule.h"

#include "trireme/core/environment.h"
#include "trireme/core/error.h"

namespace trireme::detail {

std::vector<std::pair<std::int64_t, std::int64_t>> schedule_entries(
    const StepSchedule& schedule, const std::vector<std::string>& texts) {
  std::vector<std::pair<std::int64_t, std::int64_t>> entries;
  for (const std::string& text : texts) {
    const auto colon = text.find(':');
    const auto step = parse_integer(text.substr(0, colon));
    const auto value =
        colon == std::string::npos ? std::nullopt : parse_integer(text.substr(colon + 1));
    TRIREME_CHECK(step && value && *step >= schedule.least_step && *value >= 1 &&
                      *value <= schedule.most_value,
                  "{}: expected {}, found \"{}\"",
                  {schedule.name, schedule.expected, text});
    TRIREME_CHECK(entries.empty() || entries.back().first < *step,
                  "{}: expected increasing steps, found {} after {}",
                  {schedule.name, *step, entries.back().first});
    entries.emplace_back(*step, *value);
  }
  return entries;
}

}  // namespace trireme::detail
