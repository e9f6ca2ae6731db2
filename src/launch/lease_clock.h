#pragma once

#include <chrono>

#include <time.h>

namespace trireme::detail {

// The time of leases: it goes on while the machine sleeps, as that of the others does, and setting
// the date does not change it.
struct LeaseClock {
  using duration = std::chrono::milliseconds;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<LeaseClock>;
  // NOLINTNEXTLINE(readability-identifier-naming): what a clock is asked for
  static constexpr bool is_steady = true;

  static time_point now() {
    timespec time{};
    clock_gettime(CLOCK_BOOTTIME, &time);
    return time_point(std::chrono::duration_cast<duration>(std::chrono::seconds(time.tv_sec) +
                                                           std::chrono::nanoseconds(time.tv_nsec)));
  }
};

}  // namespace trireme::detail
