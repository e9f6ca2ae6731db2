#pragma once

#include <ctime>
#include <string>

namespace trireme::detail {

// Takes away what is left in `folder` ("/tmp/trireme-1000") of jobs that are long over: records
// older than a week, and of those older than a day all but the newest hundred. `now` and
// `jobs_since` (when the oldest job that runs began, or `now`): seconds since 1970. A record that a
// running job may have written is never one of them. What is not ours, or no record, stays.
void remove_old_flights(const std::string& folder, std::time_t now, std::time_t jobs_since);

// When the oldest job of this user that still runs on this machine began; `now` where none does.
std::time_t jobs_run_since(std::time_t now);

}  // namespace trireme::detail
