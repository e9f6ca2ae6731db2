#include "settings/step_schedule.h"

#include <optional>

#include "trireme/core/environment.h"
#include "trireme/core/error.h"

namespace trireme::detail {

std::vector<std::pair<std::int64_t, std::int64_t>> schedule_entries(
    const StepSchedule& schedule, const std::vector<std::string>& texts) {
  std::vector<std::pair<std::int64_t, std::int64_t>> entries;
  for (const std::string& text : texts) {
    const auto colon = text.find(':');
    const std::string after = colon == std::string::npos ? "" : text.substr(colon + 1);
    const auto word = schedule.words.find(after);
    const bool is_word = word != schedule.words.end();
    const auto step = parse_integer(text.substr(0, colon));
    const auto value = is_word ? std::optional(word->second) : parse_integer(after);
    TRIREME_CHECK(step && value && *step >= schedule.least_step &&
                      (is_word || (*value >= 1 && *value <= schedule.most_value)),
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
